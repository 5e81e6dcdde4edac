//! Which store: what was asked for comes before what is configured, and what is nearer before what is further away.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::Failure;

pub(crate) const STORE: &str = "LEASEHOLD_STORE";

/// A configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
}

/// A store's URL, and who said so.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) url: String,
    pub(crate) by: String,
}

pub(crate) fn store(asked: Option<&str>) -> Result<Chosen, Failure> {
    if let Some(url) = asked {
        return Ok(Chosen { url: url.to_owned(), by: "--store".to_owned() });
    }
    match std::env::var(STORE) {
        Ok(url) if !url.is_empty() => return Ok(Chosen { url, by: STORE.to_owned() }),
        Ok(_) | Err(std::env::VarError::NotPresent) => {}
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(Failure::configuration(format!("{STORE} is not UTF-8; write the store's URL in it")));
        }
    }
    for path in files() {
        if let Some(File { store: Some(url) }) = read(&path)? {
            return Ok(Chosen { url, by: path.display().to_string() });
        }
    }
    Ok(Chosen { url: "file:".to_owned(), by: "default".to_owned() })
}

fn from(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether it is known where this user's state is.
pub(crate) fn has_home() -> bool {
    from("XDG_STATE_HOME").or_else(|| from("HOME")).is_some()
}

/// From near to far.
fn files() -> Vec<PathBuf> {
    let config = from("XDG_CONFIG_HOME").or_else(|| Some(from("HOME")?.join(".config")));
    let mut files = vec![PathBuf::from("leasehold.toml")];
    files.extend(config.map(|config| config.join("leasehold/config.toml")));
    files.push("/etc/leasehold/config.toml".into());
    files
}

fn read(path: &Path) -> Result<Option<File>, Failure> {
    let wrong = |why: String| Failure::configuration(format!("`{}`: {why}", path.display()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
    };
    let owner = std::fs::metadata(path).map_err(|error| wrong(format!("cannot be read: {error}")))?.uid();
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Err(wrong(
            "it belongs to another user, who could lead your locks astray; name the store with --store"
                .to_owned(),
        ));
    }
    // The parser shows the line it stumbles over, which may have a password in it.
    toml::from_str(&text).map(Some).map_err(|error: toml::de::Error| {
        let line =
            error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        wrong(format!("line {line}: {} (the only setting is `store = \"URL\"`)", error.message()))
    })
}
