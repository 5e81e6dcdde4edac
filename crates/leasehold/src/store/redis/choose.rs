//! With scripts or without: as the URL says, or as the server allows.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::address::without_arguments;
use super::script::INSPECT;
use super::{Bare, Redis, settings};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::password::Password;
use crate::store::Store;
use crate::sync::Arc;

/// What the URL says of scripts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scripts {
    /// They are used where the server runs them.
    #[default]
    Auto,
    On,
    Off,
}

impl Scripts {
    pub(super) fn parse(word: &str) -> Result<Self> {
        match word {
            "auto" => Ok(Scripts::Auto),
            "on" => Ok(Scripts::On),
            "off" => Ok(Scripts::Off),
            _ => Err(Error::invalid("scripts in the store URL", word, "write `auto`, `on` or `off`")),
        }
    }

    /// An error where the URL says that it is to be the other store.
    pub(super) fn allow_for(self, is_scripted: bool) -> Result<()> {
        match (self, is_scripted) {
            (Scripts::Off, true) => {
                Err(Error::invalid("scripts in the store URL", "off", "this store is one of scripts"))
            }
            (Scripts::On, false) => {
                Err(Error::invalid("scripts in the store URL", "on", "this store is one without scripts"))
            }
            _ => Ok(()),
        }
    }
}

/// Connects to the server at this URL as [`connect`](crate::connect) does: [`Redis`], or [`Bare`] where the URL says
/// `?scripts=off` or the server forbids scripts.
///
/// What it turned out to be able to do is in its [`capabilities`](Store::capabilities).
///
/// # Errors
/// As [`Redis::open`].
///
/// # Cancel safety
/// As [`Redis::open`].
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    open_with(url, None).await
}

/// The same with a password that does not stand in the URL.
pub(crate) async fn open_with(url: &str, password: Option<&Password>) -> Result<Arc<dyn Store>> {
    let scripts = settings(url)?.1.scripts;
    if scripts == Scripts::Off {
        return Ok(Arc::new(Bare::open_with(url, password).await?));
    }
    // One who may not use scripts need not have the right to listen either, which only scripts have a use for.
    let scripted = match Redis::open_with(url, password).await {
        Err(Error::Refused { why, .. }) if scripts == Scripts::Auto && is_about_listening(&why) => {
            let bare = Bare::open_with(url, password).await?;
            if let Some(why) = bare.scripts_are_forbidden().await {
                return Ok(Arc::new(said(bare, &why)));
            }
            return Err(Error::Refused { store: "redis", why });
        }
        opened => opened?,
    };
    if scripts == Scripts::Auto
        && let Some(why) = scripted.scripts_are_forbidden().await
    {
        return Ok(Arc::new(said(Bare::open_with(url, password).await?, &why)));
    }
    Ok(Arc::new(scripted))
}

fn said(bare: Bare, why: &str) -> Bare {
    tracing::info!(why, "the redis store works without scripts: no line, no hand-over, one holder at a time");
    bare
}

fn is_about_listening(why: &str) -> bool {
    why.contains("NOPERM") && (why.contains("subscribe") || why.contains("channel"))
}

impl Redis {
    /// Why, if they are. Tried by one that changes nothing, since to ask is a right too; and what goes wrong in another way
    /// is told by whoever uses it.
    async fn scripts_are_forbidden(&self) -> Option<String> {
        let session = self.link.session().await.ok()?;
        let name = Name::new("leasehold-probe").ok()?;
        let answer =
            self.link.run(&session, &INSPECT, |to| self.keys.write_all(&name.clone().into(), to)).await;
        forbidden(&answer.err()?)
    }
}

/// Why scripts do not run, if this is what the server says to `EVAL` or `EVALSHA`.
pub(super) fn forbidden(error: &RedisError) -> Option<String> {
    let said = without_arguments(error.detail()?);
    let is_no_right = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
    is_about_scripts(said, is_no_right).then(|| said.to_owned())
}

/// In the words of Redis, of Valkey, and of those who host them.
fn is_about_scripts(said: &str, is_no_right: bool) -> bool {
    let said = said.to_ascii_lowercase();
    let is_named = said.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "eval" | "evalsha"));
    let refusals = ["unknown command", "not allowed", "disabled", "not support"];
    is_named && (is_no_right || refusals.iter().any(|refusal| said.contains(refusal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_scripts_are_forbidden_is_known_by_what_servers_say() {
        for (said, is_no_right) in [
            ("this user has no permissions to run the 'evalsha' command", true),
            ("User web has no permissions to run the 'eval' command", true),
            ("unknown command 'EVALSHA'", false),
            ("unknown command `EVAL`", false),
            ("command EVAL is not allowed here", false),
        ] {
            assert!(is_about_scripts(said, is_no_right), "{said}");
        }
        for (said, is_no_right) in [
            ("User evaluation has no permissions to run the 'zrange' command", true),
            ("No permissions to access a key", true),
            ("unknown command 'HELLO'", false),
            ("Error running script: eval of something", false),
        ] {
            assert!(!is_about_scripts(said, is_no_right), "{said}");
        }
    }
}
