//! The scripts: one file each, behind what they share.

use std::sync::LazyLock;

/// A script as the server knows it.
#[derive(Debug)]
pub(in crate::store) struct Script {
    pub(super) source: String,
    /// SHA-1 of the source, in hex: how the server knows it.
    pub(super) digest: String,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");
const CELL_PRELUDE: &str = include_str!("scripts/cell_prelude.lua");

const ONE_ACQUIRE: &str = "return acquire(names(), ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6])";
const ONE_RELEASE: &str = "return release(names(), ARGV[1], ARGV[2])";
const ONE_RELEASE_OF_A_SHARE: &str = "return release(names(), ARGV[1])";
const ONE_RENEW: &str = "return renew(names(), ARGV[1], ARGV[2], tonumber(ARGV[3]))";

impl Script {
    /// What is quick comes before the prelude: most calls need none of that.
    fn new(quick: &str, parts: &[&str]) -> Self {
        Script::of(format!("{quick}\n{PRELUDE}\n{}", parts.join("\n")))
    }

    /// One that brings what it needs.
    pub(in crate::store) fn of(source: String) -> Self {
        let digest = sha1_smol::Sha1::from(&source).digest().to_string();
        Script { source, digest }
    }
}

pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    let quick = concat!(include_str!("scripts/acquire_free.lua"), include_str!("scripts/acquire_share.lua"));
    Script::new(quick, &[include_str!("scripts/acquire.lua"), ONE_ACQUIRE])
});

pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        include_str!("scripts/release_alone.lua"),
        &[include_str!("scripts/release.lua"), ONE_RELEASE],
    )
});

/// The same for a share, whose holder says what stands there.
pub(super) static RELEASE_SHARE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        include_str!("scripts/release_share.lua"),
        &[include_str!("scripts/release.lua"), ONE_RELEASE_OF_A_SHARE],
    )
});

pub(super) static TOGETHER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        include_str!("scripts/together_plain.lua"),
        &[
            include_str!("scripts/acquire.lua"),
            include_str!("scripts/release.lua"),
            include_str!("scripts/together.lua"),
        ],
    )
});

pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(include_str!("scripts/renew_alone.lua"), &[include_str!("scripts/renew.lua"), ONE_RENEW])
});

pub(super) static RENEW_MANY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        include_str!("scripts/renew_many_plain.lua"),
        &[include_str!("scripts/renew.lua"), include_str!("scripts/renew_many.lua")],
    )
});

pub(super) static DETACH: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/detach.lua")]));

pub(super) static CONVERT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/convert.lua")]));

pub(super) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/inspect.lua")]));

pub(super) static EVICT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/evict.lua")]));

pub(super) static ADOPT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/adopt.lua")]));

pub(super) static CELL_READ: LazyLock<Script> =
    LazyLock::new(|| Script::of(include_str!("scripts/cell_read.lua").to_owned()));

pub(super) static CELL_WRITE: LazyLock<Script> = LazyLock::new(|| {
    let (plain, rest) =
        (include_str!("scripts/cell_write_plain.lua"), include_str!("scripts/cell_write.lua"));
    Script::of(format!("{plain}\n{CELL_PRELUDE}\n{rest}"))
});

pub(super) static CELL_ADD: LazyLock<Script> =
    LazyLock::new(|| Script::of(format!("{CELL_PRELUDE}\n{}", include_str!("scripts/cell_add.lua"))));

pub(super) static CELL_TELL: LazyLock<Script> =
    LazyLock::new(|| Script::of(format!("{CELL_PRELUDE}\n{}", include_str!("scripts/cell_tell.lua"))));

pub(super) static CELL_WATCH: LazyLock<Script> =
    LazyLock::new(|| Script::of(include_str!("scripts/cell_watch.lua").to_owned()));

pub(super) static RATE_FIXED: LazyLock<Script> =
    LazyLock::new(|| Script::of(include_str!("scripts/rate_fixed.lua").to_owned()));

pub(super) static RATE_SLIDING: LazyLock<Script> =
    LazyLock::new(|| Script::of(include_str!("scripts/rate_sliding.lua").to_owned()));

pub(super) static RATE_GCRA: LazyLock<Script> =
    LazyLock::new(|| Script::of(include_str!("scripts/rate_gcra.lua").to_owned()));
