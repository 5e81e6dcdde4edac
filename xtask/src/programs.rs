//! The programs the tests need, and how they get onto a machine that lacks them.

use std::env;
use std::process::Command;

use crate::Result;

struct Program {
    /// As it is found on PATH.
    name: &'static str,
    /// The Debian packages it comes in.
    packages: &'static [&'static str],
    /// What for, to be read after "needed".
    why: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "cc",
        packages: &["gcc", "libc6-dev"],
        why: "to link, and to compile what is written in C",
    },
    Program { name: "unshare", packages: &["util-linux"], why: "to run tests in namespaces of their own" },
    Program { name: "setsid", packages: &["util-linux"], why: "to run tests at a terminal of their own" },
    Program { name: "bash", packages: &["bash"], why: "for tests of what a shell does with its jobs" },
    Program { name: "mount", packages: &["mount"], why: "for tests of disks that are full or fail" },
    Program { name: "mkfs.ext4", packages: &["e2fsprogs"], why: "for tests of disks that are full or fail" },
];

/// Installs what is missing; says what there is.
pub(crate) fn ensure() -> Result<String> {
    let missing: Vec<&Program> = PROGRAMS.iter().filter(|program| !is_on_path(program.name)).collect();
    if missing.is_empty() {
        return Ok(format!("{}: found", names(PROGRAMS.iter())));
    }
    for program in &missing {
        println!("`{}` is missing; it is needed {}.", program.name, program.why);
    }
    install(&missing)?;
    match missing.iter().find(|program| !is_on_path(program.name)) {
        None => Ok(format!("{}: installed", names(missing.iter().copied()))),
        Some(program) => Err(format!(
            "`{}` is still not on PATH, although `{}` was installed.",
            program.name,
            program.packages.join(" ")
        )),
    }
}

fn install(missing: &[&Program]) -> Result<()> {
    let packages: Vec<&str> = missing.iter().flat_map(|program| program.packages).copied().collect();
    let by_hand = |why: &str| {
        Err(format!(
            "Missing: {}. {why}; install them yourself (on Debian: `apt-get install {}`) and try again.",
            names(missing.iter().copied()),
            packages.join(" ")
        ))
    };
    if !is_on_path("apt-get") {
        return by_hand("There is no apt-get here to install them with");
    }
    if !is_root() {
        return by_hand("Only root may install them");
    }
    for args in [&["update"][..], &["install", "-y", "--no-install-recommends"]] {
        let mut command = Command::new("apt-get");
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        if args[0] == "install" {
            command.args(&packages);
        }
        println!("\n==> apt-get {}", args.join(" "));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return by_hand(&format!("`apt-get {}` ended with {status}", args[0])),
            Err(error) => return by_hand(&format!("apt-get could not be started ({error})")),
        }
    }
    Ok(())
}

fn names<'a>(programs: impl Iterator<Item = &'a Program>) -> String {
    programs.map(|program| program.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn is_on_path(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
