//! Python packages, each in a directory of its own below the target directory.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::programs::{Program, install};

/// A Python may well be there without it, so being on PATH proves nothing: it is asked.
const PIP: Program =
    Program { name: "pip", packages: &["python3", "python3-pip"], why: "to fetch what Debian does not have" };

/// Into a directory of its own, which is no environment of Python: nothing that the system manages is touched, and pip
/// does not refuse where the system manages the rest.
pub(crate) fn fetch(package: &str, into: &Path, options: &[&str]) -> Result<()> {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        install(&[&PIP])?;
    }
    let args = [&["-m", "pip", "install", "--quiet", "--upgrade"], options, &["--target"]].concat();
    println!("\n==> python3 {} {} {package}", args.join(" "), into.display());
    let quiet = [("PIP_ROOT_USER_ACTION", "ignore"), ("PIP_DISABLE_PIP_VERSION_CHECK", "1")];
    let ended = Command::new("python3").args(args).arg(into).arg(package).envs(quiet).status();
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("pip could not install {package}: it ended with {status}; see above.")),
        Err(error) => Err(format!("python3 could not be started: {error}.")),
    }
}
