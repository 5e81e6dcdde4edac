//! The names that commands hold from which this one was started: to wait for one of them is to wait for oneself.

use leasehold::Names;
use rustix::process::{Pid, test_kill_process};

/// In the environment of a command: `SHARE:PID NAME`, separated by tabs, which no name has. PID is the `leasehold` that holds it.
pub(crate) const HELD: &str = "LEASEHOLD_HELD";

/// How a name is held or asked for, in one letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Alone,
    Shared,
    Permits,
}

impl Way {
    const ALL: [(Way, &'static str); 3] = [(Way::Alone, "x"), (Way::Shared, "r"), (Way::Permits, "p")];

    fn letter(self) -> &'static str {
        Way::ALL.iter().find(|(way, _)| *way == self).map_or("x", |(_, letter)| letter)
    }
}

/// What a command that is started under these names finds in [`HELD`].
pub(crate) fn extended(names: &Names, way: Way) -> String {
    let pid = std::process::id();
    let inherited = std::env::var(HELD).ok().filter(|held| !held.is_empty());
    let own = names.into_iter().map(|name| format!("{}:{pid} {name}", way.letter()));
    inherited.into_iter().chain(own).collect::<Vec<_>>().join("\t")
}

/// The first of these names that a living ancestor holds in a way that keeps this one out.
pub(crate) fn in_the_way(names: &Names, way: Way) -> Option<String> {
    let held = std::env::var(HELD).ok()?;
    held.split('\t').find_map(|entry| {
        let (how, name) = entry.split_once(' ')?;
        let (letter, pid) = how.split_once(':')?;
        let (its_way, _) = Way::ALL.into_iter().find(|(_, known)| *known == letter)?;
        let excludes = way == Way::Alone || way != its_way;
        let lives = Pid::from_raw(pid.parse().ok()?)
            .is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
        let is_asked_for = names.into_iter().any(|asked| asked.as_str() == name);
        (excludes && lives && is_asked_for).then(|| name.to_owned())
    })
}

/// What to say about that.
pub(crate) fn warning(name: &str) -> String {
    format!(
        "`{name}` is held by a command that this one was started from; if both use the same store, this command cannot get the lock \
         while that one runs"
    )
}
