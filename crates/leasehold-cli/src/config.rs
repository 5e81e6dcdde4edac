//! The store and the defaults: from the command line, else the environment, else configuration
//! files.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::Owner;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::duration;
use crate::exit::Failure;
use crate::input::{self, Pipes};
use crate::log;

pub(crate) const STORE: &str = "LEASEHOLD_STORE";

/// The value of LEASEHOLD_STORE for a command if the password in the URL is not certain.
pub(crate) const WITHHELD: &str = "withheld:";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
    /// For the same file's store only: no password goes to another server. Relative to the file.
    password_file: Option<PathBuf>,
    #[serde(default, deserialize_with = "read_duration")]
    ttl: Option<Duration>,
    owner: Option<String>,
}

/// The defaults of `run`, `elect` and `lock` after the command line.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    /// Not for `lock`, whose lock is not renewed.
    pub(crate) ttl: Option<Duration>,
    pub(crate) owner: Option<Owner>,
}

#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) url: String,
    pub(crate) by: ChosenBy,
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    Option,
    /// The variable or the configuration file of this name.
    Setting(String),
    Default,
}

impl fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChosenBy::Option => f.write_str("--store"),
            ChosenBy::Setting(name) => f.write_str(name),
            ChosenBy::Default => f.write_str("default"),
        }
    }
}

impl Chosen {
    /// The failure for a wrong URL: of usage if it was typed, otherwise of the configuration.
    pub(crate) fn failure(&self, why: impl fmt::Display) -> Failure {
        match &self.by {
            ChosenBy::Option => Failure::usage(why.to_string()),
            by => Failure::configuration(format!("{by}: {why}")),
        }
    }
}

pub(crate) fn store(asked: Option<&str>) -> Result<Chosen, Failure> {
    let chosen = |url: &str, by| Ok(Chosen { url: url.to_owned(), by, password_file: None });
    if let Some(url) = asked {
        return chosen(url, ChosenBy::Option);
    }
    match variable(STORE, "URL")? {
        Some(url) if url == WITHHELD => {
            return Err(Failure::configuration(format!(
                "{STORE} was withheld from this command, because its password could not be told from the rest of the URL; \
                 correct it where the outer `leasehold` gets it, or name the store with --store"
            )));
        }
        Some(url) => return chosen(&url, ChosenBy::Setting(STORE.to_owned())),
        None => {}
    }
    for path in files() {
        if let Some(File { store: Some(url), password_file, .. }) = read(&path)? {
            let password_file = password_file.map(|file| path.parent().unwrap_or(Path::new("")).join(file));
            return Ok(Chosen { url, by: ChosenBy::Setting(path.display().to_string()), password_file });
        }
    }
    chosen("file:", ChosenBy::Default)
}

/// Reads each setting from the nearest file that has it. If the store is named by other means, an
/// unusable file is only a warning: such a command worked without it.
pub(crate) fn defaults(asked: Option<&str>) -> Result<Defaults, Failure> {
    let needs_no_file = asked.is_some() || std::env::var_os(STORE).is_some_and(|url| !url.is_empty());
    let mut defaults = Defaults::default();
    for path in files() {
        let file = match read(&path) {
            Err(failure) if needs_no_file => {
                log::warn(failure.message);
                continue;
            }
            file => file?,
        };
        let Some(File { ttl, owner, .. }) = file else { continue };
        let wrong = |error| Failure::configuration(format!("`{}`: {error}", path.display()));
        let owner = owner.map(Owner::new).transpose().map_err(wrong)?;
        defaults.ttl = defaults.ttl.or(ttl);
        defaults.owner = defaults.owner.or(owner);
    }
    Ok(defaults)
}

/// Reads the store's `what` from an environment variable. An empty variable counts as not set.
pub(crate) fn variable(name: &str, what: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::configuration(format!("{name} is not UTF-8; write the store's {what} in it")))
        }
        value => Ok(value.ok().filter(|value| !value.is_empty())),
    }
}

fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    duration::parse(&text).map(Some).map_err(D::Error::custom)
}

fn from(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns whether the environment names a place for this user's state.
pub(crate) fn has_home() -> bool {
    from("XDG_STATE_HOME").or_else(|| from("HOME")).is_some()
}

/// The configuration files. An earlier file overrides a later one.
fn files() -> Vec<PathBuf> {
    let config = from("XDG_CONFIG_HOME").or_else(|| Some(from("HOME")?.join(".config")));
    let mut files = vec![PathBuf::from("leasehold.toml")];
    files.extend(config.map(|config| config.join("leasehold/config.toml")));
    files.push("/etc/leasehold/config.toml".into());
    files
}

fn read(path: &Path) -> Result<Option<File>, Failure> {
    let wrong = |why: &str| Failure::configuration(format!("`{}`: {why}", path.display()));
    let unreadable = |error: std::io::Error| wrong(&format!("cannot be read: {error}"));
    let opened = std::fs::symlink_metadata(path).and_then(|about| match is_trusted(about.uid()) {
        true => input::open(path, Pipes::Refuse).map(Some),
        // A link of another user is not followed.
        false => Ok(None),
    });
    let file = match opened {
        Ok(Some((file, about))) if is_trusted(about.uid()) => file,
        Ok(_) => {
            let why =
                "it belongs to another user, who could lead your locks astray; name the store with --store";
            return Err(wrong(why));
        }
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    let text = input::read(file).map_err(unreadable)?;
    // The parser shows the wrong line, which may contain a password.
    toml::from_str(&text).map(Some).map_err(|error: toml::de::Error| {
        let line =
            error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        wrong(&format!(
            "line {line}: {} (the settings are store, password_file, ttl and owner, each a string)",
            error.message()
        ))
    })
}

/// Returns whether the owner of a file is this user or root.
pub(crate) fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}
