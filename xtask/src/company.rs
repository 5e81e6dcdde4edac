//! Other libraries that lock the same keys of a Redis: tests share a lock with them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::cargo::tools;
use crate::pip;

const PYTHON: &str = "redis==6.4.0";
const NODE: [&str; 2] = ["redlock@5.0.0-beta.2", "ioredis@5.8.2"];

/// Installs them where they are missing; says what there is.
pub(crate) fn ensure() -> Result<String> {
    let home = std::path::absolute(tools()).unwrap_or_else(|_| tools()).join("company");
    let note = home.join("installed");
    let wanted = format!("{PYTHON} {}", NODE.join(" "));
    if fs::read_to_string(&note).is_ok_and(|found| found == wanted) {
        return Ok("redis-py, node-redlock: found".to_owned());
    }
    pip::fetch(PYTHON, &home.join("python"), &[])?;
    npm(&home.join("node"))?;
    fs::write(&note, wanted).map_err(|error| format!("`{}`: {error}.", note.display()))?;
    Ok("redis-py, node-redlock: installed".to_owned())
}

fn npm(into: &Path) -> Result<()> {
    let args = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
    println!("\n==> npm {} {} {}", args.join(" "), into.display(), NODE.join(" "));
    match Command::new("npm").args(args).arg(into).args(NODE).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("npm could not install {}: it ended with {status}.", NODE.join(", "))),
        Err(error) => Err(format!("npm could not be started: {error}.")),
    }
}
