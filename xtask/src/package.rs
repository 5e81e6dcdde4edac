//! The tarballs of the published crates: whether they build, and whether they hold what every reader expects.

use crate::Result;
use crate::cargo::Cargo;

const PUBLISHED: &[&str] = &["leasehold", "leasehold-cli"];

const EXPECTED: &[&str] = &["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Packages the published crates together, because the command needs a library that is in no registry yet; builds each from its tarball.
pub(crate) fn check() -> Result<()> {
    for name in PUBLISHED {
        let listed = Cargo::new("package --list --allow-dirty --package").arg(*name).output()?;
        let missing: Vec<&str> =
            EXPECTED.iter().copied().filter(|file| !listed.lines().any(|line| line == *file)).collect();
        if !missing.is_empty() {
            return Err(format!("The package `{name}` lacks {}.", missing.join(", ")));
        }
    }
    let call = PUBLISHED
        .iter()
        .fold(Cargo::new("package --quiet --allow-dirty"), |call, name| call.arg("--package").arg(*name));
    // The build is thrown away: it only has to succeed.
    call.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0").run()
}
