//! Everything that descends from this process, whatever group or session it has gone to: as a subreaper it inherits the
//! orphans, so that nothing gets out of the family.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitid,
};

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    /// `None` for one that cannot be seen from here.
    pub(super) group: Option<Pid>,
    session: i32,
    name: String,
    is_dead: bool,
    /// With the pid this is unique; a pid alone may be used again.
    started: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid.as_raw_nonzero(), self.name)
    }
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Process::look(pid).ok().flatten()
    }

    /// `None` where it is gone.
    fn look(pid: i32) -> io::Result<Option<Self>> {
        match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => Ok(Process::parse(pid, &String::from_utf8_lossy(&stat))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `pid (name) state parent …`, where the name may have anything in it.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Process {
            pid: Pid::from_raw(pid)?,
            parent: fields.get(1)?.parse().ok()?,
            // −1 of one that is just going.
            group: fields.get(2)?.parse().ok().filter(|group| *group > 0).and_then(Pid::from_raw),
            session: fields.get(3)?.parse().ok()?,
            name: name.to_owned(),
            is_dead: matches!(*fields.first()?, "Z" | "X"),
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// To this process and no other that may have got its number since.
    fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(fd) => match Process::read(self.pid.as_raw_nonzero().get()) {
                Some(found) if found.started == self.started => pidfd_send_signal(&fd, signal),
                _ => Ok(()),
            },
            Err(Errno::NOSYS | Errno::PERM) => kill_process(self.pid, signal),
            Err(error) => Err(error),
        };
        match sent {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }
}

/// What descends from this process, but for those that are not the command's.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// Its children before it started anything (of a shell that became it), and the programs it starts for itself.
    strangers: HashSet<Pid>,
    /// The groups of those programs: what they leave in the background is not the command's either.
    strange_groups: HashSet<Pid>,
}

impl Family {
    /// To be called before the first child is started.
    pub(super) fn found() -> io::Result<Self> {
        let us = getpid().as_raw_nonzero().get();
        // Of another PID namespace: its numbers are others' processes.
        if std::fs::read_link("/proc/self")?.as_os_str() != us.to_string().as_str() {
            return Err(io::Error::other(
                "/proc belongs to another PID namespace; mount one for this (unshare --mount-proc)",
            ));
        }
        set_child_subreaper(Some(getpid()))?;
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let has_none = matches!(waitid(WaitId::All, any), Err(Errno::CHILD));
        let strangers = match has_none {
            true => HashSet::new(),
            false => children_of(us, &all()?).map(|child| child.pid).collect(),
        };
        Ok(Family { strangers, strange_groups: HashSet::new() })
    }

    /// One that leads a group of its own.
    pub(super) fn leave_out(&mut self, leader: Pid) {
        self.strangers.insert(leader);
        self.strange_groups.insert(leader);
    }

    pub(super) fn has_strangers(&self) -> bool {
        !self.strangers.is_empty() || !self.strange_groups.is_empty()
    }

    /// A stranger that has ended: its number may be used again.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.strangers.remove(&pid);
    }

    fn is_strange(&self, process: &Process) -> bool {
        self.strangers.contains(&process.pid)
            || process.group.is_some_and(|group| self.strange_groups.contains(&group))
    }

    /// Those who live, as far as they can be seen. Who comes and goes under the look may be missed.
    ///
    /// # Errors
    /// Where there is no descriptor left to look with, for example.
    pub(super) fn living(&self) -> io::Result<Vec<Process>> {
        let all = all()?;
        let mut found = Vec::new();
        let mut parents = vec![getpid().as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for child in children_of(parent, &all).filter(|child| !self.is_strange(child)) {
                parents.push(child.pid.as_raw_nonzero().get());
                if !child.is_dead {
                    found.push(child.clone());
                }
            }
        }
        Ok(found)
    }

    /// To everybody who is meant. Says who could not be reached.
    pub(super) fn signal(&self, signal: Signal, is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
        let meant = self.living().unwrap_or_default().into_iter().filter(is_meant);
        meant.filter(|process| process.signal(signal).is_err()).collect()
    }

    /// Kills those who are children of ours, which every orphan of the family becomes. Much quicker than a look at everybody:
    /// enough for one that starts its successor and ends, again and again.
    pub(super) fn kill_children(&self) {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|pid| Process::read(pid.parse().ok()?));
            for child in pids.filter(|child| !self.is_strange(child)) {
                // A child's number is its own until it is reaped, which is our business.
                let _ = kill_process(child.pid, Signal::KILL);
            }
        }
    }
}

/// Whether a shell is there that would continue us if we stopped. Without one a stop would be for ever, and the terminal's
/// Ctrl-Z means nothing.
pub(super) fn somebody_continues_us() -> bool {
    let Some(us) = Process::read(getpid().as_raw_nonzero().get()) else { return false };
    let mut parent = us.parent;
    // Past those who would stop with us.
    while let Some(process) = Process::read(parent).filter(|process| process.session == us.session) {
        if process.group != us.group {
            return true;
        }
        parent = process.parent;
    }
    false
}

fn children_of(parent: i32, all: &BTreeMap<i32, Vec<Process>>) -> impl Iterator<Item = &Process> {
    all.get(&parent).into_iter().flatten()
}

/// Every process that can be seen, by parent.
fn all() -> io::Result<BTreeMap<i32, Vec<Process>>> {
    let mut all: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(process) = Process::look(pid)? {
            all.entry(process.parent).or_default().push(process);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it_is_read() {
        let tail = "S 7 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let read = |name: &str| Process::parse(12, &format!("12 ({name}) {tail}")).expect("it is read");
        for name in ["sh", "a b", "a) S 99 (b", "((", ""] {
            let process = read(name);
            assert_eq!((process.parent, process.started, process.is_dead), (7, 4711, false), "{name}");
            assert_eq!(process.group, Some(Pid::INIT));
            assert_eq!(process.to_string(), format!("12 ({name})"));
        }
        let going = Process::parse(12, &format!("12 (sh) {}", tail.replace("S 7 1 1", "X -1 -1 -1")));
        assert_eq!(going.map(|process| (process.group, process.is_dead)), Some((None, true)));
        for torn in ["", "12", "12 (sh", "12 (sh)", "12 (sh) S", "12 (sh) S x"] {
            assert_eq!(Process::parse(12, torn), None, "{torn}");
        }
    }
}
