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
    fn new(body: &str) -> Self {
        let source = format!("{PRELUDE}\n{body}");
        let digest = sha1_smol::Sha1::from(&source).digest().to_string();
        Script { source, digest }
    }
}

macro_rules! scripts {
    ($($constant:ident = $file:literal;)*) => {
        $(pub(super) static $constant: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file, ".lua"))));)*
    };
}

scripts! {
    ACQUIRE = "acquire";
    RELEASE = "release";
    RENEW = "renew";
    DETACH = "detach";
    CONVERT = "convert";
    INSPECT = "inspect";
    EVICT = "evict";
}
