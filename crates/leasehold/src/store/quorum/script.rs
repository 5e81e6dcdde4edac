//! The scripts of a node: one file each, behind what they share.

use std::sync::LazyLock;

use crate::store::redis::script::Script;

const PRELUDE: &str = include_str!("scripts/prelude.lua");

macro_rules! scripts {
    ($($name:ident: $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::of(format!("{PRELUDE}\n{}", include_str!(concat!("scripts/", $file, ".lua"))))
        });)*
    };
}

scripts! {
    GREET: "greet";
    ACQUIRE: "acquire";
    RENEW: "renew";
    REPAIR: "repair";
    DETACH: "detach";
    RELEASE: "release";
    INSPECT: "inspect";
    EVICT: "evict";
    ADOPT: "adopt";
}
