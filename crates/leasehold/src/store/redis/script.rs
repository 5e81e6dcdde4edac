//! The scripts: one file each, behind what they share.

use std::sync::LazyLock;

/// A script as the server knows it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: String,
    /// SHA-1 of the source, in hex: how the server knows it.
    pub(super) digest: String,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");

impl Script {
    /// What is quick comes before the prelude: most calls need none of that.
    fn new(quick: &str, body: &str) -> Self {
        let source = format!("{quick}\n{PRELUDE}\n{body}");
        let digest = sha1_smol::Sha1::from(&source).digest().to_string();
        Script { source, digest }
    }
}

pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(include_str!("scripts/acquire_free.lua"), include_str!("scripts/acquire.lua"))
});

pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(include_str!("scripts/release_alone.lua"), include_str!("scripts/release.lua"))
});

pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew_alone.lua"), include_str!("scripts/renew.lua")));

pub(super) static DETACH: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("scripts/detach.lua")));

pub(super) static CONVERT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("scripts/convert.lua")));

pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("scripts/inspect.lua")));

pub(super) static EVICT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("scripts/evict.lua")));

pub(super) static ADOPT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("scripts/adopt.lua")));
