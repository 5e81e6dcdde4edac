//! Names held by ancestors of this process: a command that waits for one waits for itself.

use std::time::Duration;

use leasehold::{Names, Share};
use rustix::process::{Pid, test_kill_process};

/// The environment variable with `SHARE:PID NAME` entries, separated by tabs, which no name
/// contains. PID is the `leasehold` that holds the name.
pub(crate) const HELD: &str = "LEASEHOLD_HELD";

fn letter(share: Share) -> &'static str {
    match share {
        Share::Exclusive => "x",
        Share::Shared => "r",
        Share::Permits(_) => "p",
    }
}

/// The value of [`HELD`] for a command that runs under these names.
pub(crate) fn extended(names: &Names, share: Share) -> String {
    let pid = std::process::id();
    let inherited = std::env::var(HELD).ok().filter(|held| !held.is_empty());
    let own = names.into_iter().map(|name| format!("{}:{pid} {name}", letter(share)));
    inherited.into_iter().chain(own).collect::<Vec<_>>().join("\t")
}

/// Warns if this process waits for a name that a live ancestor holds in an excluding share.
pub(crate) fn warning(names: &Names, share: Share, wait: Duration) -> Option<String> {
    if wait.is_zero() {
        return None;
    }
    let held = std::env::var(HELD).ok()?;
    let name = held.split('\t').find_map(|entry| {
        let (how, name) = entry.split_once(' ')?;
        let (its_letter, pid) = how.split_once(':')?;
        let is_known = ["x", "r", "p"].contains(&its_letter);
        let excludes = is_known && (share == Share::Exclusive || letter(share) != its_letter);
        let is_alive = Pid::from_raw(pid.parse().ok()?)
            .is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
        let is_asked_for = names.into_iter().any(|asked| asked.as_str() == name);
        (excludes && is_alive && is_asked_for).then_some(name)
    })?;
    Some(format!(
        "`{name}` is held by a command that this one was started from; if both use the same store, this command cannot get the lock \
         while that one runs"
    ))
}
