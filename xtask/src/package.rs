//! The tarballs of the published crates: checks that they build and contain what readers expect.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::cargo::{Cargo, root, target, tools};

const PUBLISHED: &[&str] = &["leasehold", "leasehold-cli"];

const EXPECTED: &[&str] = &["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Packages the published crates, and checks the code in the tarballs as a workspace of its own.
///
/// `cargo package` would compile every dependency again; this uses those that clippy has checked.
pub(crate) fn check() -> Result<()> {
    let workspace = tools().join("packages");
    let _ = fs::remove_dir_all(&workspace);
    let package = Cargo::new("package --quiet --allow-dirty --no-verify");
    PUBLISHED.iter().fold(package, |call, name| call.arg("--package").arg(*name)).run()?;
    unpack(&workspace)?;
    for name in PUBLISHED {
        let missing: Vec<&str> =
            EXPECTED.iter().copied().filter(|file| !workspace.join(name).join(file).is_file()).collect();
        if !missing.is_empty() {
            return Err(format!("The package `{name}` lacks {}.", missing.join(", ")));
        }
    }
    Cargo::new("check --quiet --workspace --manifest-path")
        .arg(workspace.join("Cargo.toml").to_string_lossy())
        .arg("--target-dir")
        .arg(target().to_string_lossy())
        .run()
}

/// Unpacks the tarballs into a workspace with this one's profiles and versions. The unpacked
/// library replaces the registry's for the command: it may not be published yet.
fn unpack(workspace: &Path) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let profiles = manifest.find("[profile").map_or("", |start| &manifest[start..]);
        let members = PUBLISHED.join("\", \"");
        let manifest = format!(
            "[workspace]\nresolver = \"3\"\nmembers = [\"{members}\"]\n\n\
             [patch.crates-io]\nleasehold = {{ path = \"leasehold\" }}\n\n{profiles}"
        );
        fs::create_dir_all(workspace)?;
        fs::write(workspace.join("Cargo.toml"), manifest)?;
        fs::copy(root().join("Cargo.lock"), workspace.join("Cargo.lock"))?;
        for name in PUBLISHED {
            let tarball = target().join(format!("package/{name}-{}.crate", env!("CARGO_PKG_VERSION")));
            let folder = workspace.join(name);
            fs::create_dir(&folder)?;
            let mut tar = Command::new("tar");
            tar.args(["--strip-components=1", "-xzf"]).arg(tarball).arg("-C").arg(folder);
            if !tar.status()?.success() {
                return Err(std::io::Error::other(format!("tar cannot unpack {name}")));
            }
        }
        Ok(())
    };
    written().map_err(|error| format!("The packages could not be unpacked: {error}."))
}
