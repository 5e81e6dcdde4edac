//! The library as its users build it: each feature alone, and beside another SQLite.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::cargo::{Cargo, root, tools};

/// The features of `leasehold`. `--all-features` hides code that is gated by another feature.
const FEATURES: &[&str] = &["file", "json", "redis", "testing"];

/// Versions of sqlx that link SQLite by default, which Cargo allows once per dependency graph.
const SQLX: &[&str] = &["0.8", "0.9"];

/// Lints the library with no feature, with its default features, and with each feature alone.
pub(crate) fn each_alone() -> Vec<Cargo> {
    let with = |features: &str| {
        Cargo::new(&format!("clippy --package leasehold --lib {features} -- -D warnings").replace("  ", " "))
    };
    let alone = FEATURES.iter().map(|feature| format!("--no-default-features --features {feature}"));
    [String::new(), "--no-default-features".to_owned()].into_iter().chain(alone).map(|f| with(&f)).collect()
}

/// Resolves a package that depends on the library and on sqlx, both with default features.
pub(crate) fn resolve_beside_sqlx() -> Result<()> {
    let library = std::path::absolute(root().join("crates/leasehold"))
        .map_err(|error| format!("The library was not found: {error}."))?;
    for version in SQLX {
        let folder = tools().join(format!("beside-sqlx-{version}"));
        write_package(&folder, &library, version)
            .map_err(|error| format!("`{}` could not be written: {error}.", folder.display()))?;
        Cargo::new("generate-lockfile --quiet --manifest-path")
            .arg(folder.join("Cargo.toml").to_string_lossy())
            .run()
            .map_err(|why| format!("leasehold does not resolve beside sqlx {version}. {why}"))?;
    }
    Ok(())
}

fn write_package(folder: &Path, library: &Path, sqlx: &str) -> std::io::Result<()> {
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"beside-sqlx\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nleasehold = {{ path = {library:?} }}\nsqlx = \"{sqlx}\"\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_of_the_manifest_is_checked() {
        let manifest = include_str!("../../crates/leasehold/Cargo.toml");
        let section = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next());
        let mut declared: Vec<&str> = section
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(" = ").map(|(feature, _)| feature))
            .filter(|feature| *feature != "default")
            .collect();
        declared.sort_unstable();
        assert_eq!(declared, FEATURES);
    }
}
