//! `deny`: the licences, bans, sources and, if they can be fetched, advisories of the dependencies.

use std::env;

use crate::Result;
use crate::cargo::{Cargo, tools};

/// Fails on findings only. Advisories that could not be fetched are no finding, but reported last.
pub(crate) fn check() -> Result<()> {
    ensure_installed()?;
    // Separate calls: for an advisory and for a failed fetch, cargo-deny has the same exit code.
    let rest = call("check licenses bans sources").run();
    let fetched = call("fetch db").run();
    let advisories = if fetched.is_ok() { call("check advisories").run() } else { Ok(()) };
    if fetched.is_err() {
        println!(
            "\nNOT CHECKED: the advisory database could not be fetched (see above), so nobody looked for known \
             vulnerabilities, unmaintained crates or yanked versions. Licences, bans and sources were checked."
        );
    }
    let findings: Vec<&str> = [(&rest, "licences, bans or sources"), (&advisories, "advisories")]
        .into_iter()
        .filter_map(|(checked, what)| checked.is_err().then_some(what))
        .collect();
    match findings.as_slice() {
        [] => Ok(()),
        _ => Err(format!("cargo-deny found fault with the {}; see above.", findings.join(", and with the "))),
    }
}

fn call(args: &str) -> Cargo {
    Cargo::new(&format!("deny {args}")).sees_tools()
}

fn ensure_installed() -> Result<()> {
    if is_on_path("cargo-deny") || tools().join("bin/cargo-deny").is_file() {
        return Ok(());
    }
    println!("cargo-deny is missing; building it takes some minutes, once.");
    Cargo::new("install --locked cargo-deny --root")
        .arg(tools().to_string_lossy())
        .run()
        .map_err(|why| format!("cargo-deny could not be installed. {why}"))
}

fn is_on_path(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}
