//! The descendants of this subreaper, in all groups and sessions: orphans become its children.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};

/// The number of processes that a scan reads before it reaps again.
const SCAN_BATCH: usize = 16;

/// The number of children that one sweep kills.
const SWEEP_BATCH: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    /// `None` if it is not visible from this PID namespace.
    pub(super) group: Option<Pid>,
    session: i32,
    name: String,
    is_dead: bool,
    /// Unique together with the pid; a pid alone may be reused.
    started: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A process chooses its name, which may contain line breaks and control characters.
        let name: String = self.name.chars().flat_map(char::escape_debug).collect();
        write!(f, "{} ({name})", self.pid.as_raw_nonzero())
    }
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Process::try_read(pid).ok().flatten()
    }

    /// Returns `None` if it has ended.
    fn try_read(pid: i32) -> io::Result<Option<Self>> {
        // One read: the kernel writes the line as a whole, and it is shorter than this.
        let mut line = [0; 1024];
        let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line));
        match read {
            Ok(n) => Ok(Process::parse(pid, &String::from_utf8_lossy(&line[..n]))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parses `pid (name) state parent …`. The name may contain any character.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Process {
            pid: Pid::from_raw(pid)?,
            parent: fields.get(1)?.parse().ok()?,
            // −1 while the process exits.
            group: fields.get(2)?.parse().ok().filter(|group| *group > 0).and_then(Pid::from_raw),
            session: fields.get(3)?.parse().ok()?,
            name: name.to_owned(),
            is_dead: matches!(*fields.first()?, "Z" | "X"),
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Signals this process, and no later process with the same number.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        // A child keeps its number until this thread reaps it.
        let is_child = self.parent == getpid().as_raw_nonzero().get();
        let sent = if is_child { kill_process(self.pid, signal) } else { self.signal_verified(signal) };
        match sent {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    fn signal_verified(&self, signal: Signal) -> Result<(), Errno> {
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(fd) => match Process::read(self.pid.as_raw_nonzero().get()) {
                Some(found) if found.started == self.started => pidfd_send_signal(&fd, signal),
                _ => Ok(()),
            },
            Err(Errno::NOSYS | Errno::PERM) => kill_process(self.pid, signal),
            Err(error) => Err(error),
        }
    }
}

/// The descendants of this process that belong to the command.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Children that a shell started before it became this process, and leasehold's own programs.
    excluded: HashSet<Pid>,
    /// The groups of those programs, with the processes that they leave in the background.
    excluded_groups: HashSet<Pid>,
    /// The kernel's list of the main thread's children, if the kernel has one. It contains orphans:
    /// the kernel makes them children of their reaper's first thread.
    children: Option<File>,
}

impl Descendants {
    /// Makes this process the reaper of its descendants; called before the first child starts.
    pub(super) fn adopt() -> io::Result<Self> {
        let own = getpid().as_raw_nonzero().get();
        // In the /proc of another PID namespace, the numbers mean other processes.
        if std::fs::read_link("/proc/self")?.as_os_str() != own.to_string().as_str() {
            return Err(io::Error::other(
                "/proc belongs to another PID namespace; mount one for this (unshare --mount-proc)",
            ));
        }
        set_child_subreaper(Some(getpid()))?;
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let excluded = match waitid(WaitId::All, any) {
            Err(Errno::CHILD) => HashSet::new(),
            _ => children_of(own, &all(&mut || true)?).map(|child| child.pid).collect(),
        };
        let children = File::open(format!("/proc/self/task/{own}/children")).ok();
        Ok(Descendants { excluded, excluded_groups: HashSet::new(), children })
    }

    /// Excludes a process that leads its own group.
    pub(super) fn exclude(&mut self, leader: Pid) {
        self.excluded.insert(leader);
        self.excluded_groups.insert(leader);
    }

    pub(super) fn has_excluded(&self) -> bool {
        !self.excluded.is_empty() || !self.excluded_groups.is_empty()
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.excluded.remove(&pid);
    }

    fn is_excluded(&self, pid: Pid, group: impl FnOnce() -> Option<Pid>) -> bool {
        let is_in = |groups: &HashSet<Pid>| group().is_some_and(|group| groups.contains(&group));
        self.excluded.contains(&pid) || (!self.excluded_groups.is_empty() && is_in(&self.excluded_groups))
    }

    /// Finds the running descendants in `all`, by parent. `reaped` are the children that were
    /// reaped while `all` was read: their own children are still listed under them.
    pub(super) fn living(&self, all: &BTreeMap<i32, Vec<Process>>, reaped: &HashSet<Pid>) -> Vec<Process> {
        let mut found = Vec::new();
        let mut parents: Vec<i32> = reaped.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        parents.push(getpid().as_raw_nonzero().get());
        while let Some(parent) = parents.pop() {
            let children = children_of(parent, all).filter(|child| !reaped.contains(&child.pid));
            for child in children.filter(|child| !self.is_excluded(child.pid, || child.group)) {
                parents.push(child.pid.as_raw_nonzero().get());
                if !child.is_dead {
                    found.push(child.clone());
                }
            }
        }
        found
    }

    /// Kills children of this process, which all orphans become, and adds them to `killed`. Skips
    /// those in `killed`. Returns how many it killed, at most [`SWEEP_BATCH`].
    ///
    /// It reads one file in a few microseconds, where a scan of all processes takes milliseconds.
    /// So it overtakes processes that fork and exit: one with a pending SIGKILL forks no more.
    pub(super) fn kill_children(&self, killed: &mut HashSet<Pid>) -> usize {
        let mut list = String::new();
        let Some(mut file) = self.children.as_ref() else { return 0 };
        if file.rewind().and_then(|()| file.read_to_string(&mut list)).is_err() {
            return 0;
        }
        let before = killed.len();
        // The youngest first: most of the others may be dead already. On a busy machine there are
        // thousands that were not reaped yet.
        for pid in list.split_whitespace().rev().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            if killed.len() == before + SWEEP_BATCH {
                break;
            }
            if !killed.contains(&pid) && !self.is_excluded(pid, || getpgid(Some(pid)).ok()) {
                let _ = kill_process(pid, Signal::KILL);
                killed.insert(pid);
            }
        }
        killed.len() - before
    }
}

/// Returns whether a shell would continue this process after a stop. Without one it would stay
/// stopped, and the terminal's Ctrl-Z has no effect.
pub(super) fn can_be_continued() -> bool {
    let Some(own) = Process::read(getpid().as_raw_nonzero().get()) else { return false };
    let mut parent = own.parent;
    // Skips the ancestors that would stop together with this process.
    while let Some(process) = Process::read(parent).filter(|process| process.session == own.session) {
        if process.group != own.group {
            return true;
        }
        parent = process.parent;
    }
    false
}

fn children_of(parent: i32, all: &BTreeMap<i32, Vec<Process>>) -> impl Iterator<Item = &Process> {
    all.get(&parent).into_iter().flatten()
}

/// Reads all visible processes, by parent. It may miss some that start or end meanwhile.
///
/// # Errors
/// `goes_on` returned false, or `/proc` cannot be read, for lack of a descriptor for example.
pub(super) fn all(goes_on: &mut dyn FnMut() -> bool) -> io::Result<BTreeMap<i32, Vec<Process>>> {
    // The numbers first: otherwise a scan would never end if processes start faster than it reads.
    let pids = pids()?;
    let mut all: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for batch in pids.chunks(SCAN_BATCH) {
        if !goes_on() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for pid in batch {
            if let Some(process) = Process::try_read(*pid)? {
                all.entry(process.parent).or_default().push(process);
            }
        }
    }
    Ok(all)
}

fn pids() -> io::Result<Vec<i32>> {
    let pid = |entry: io::Result<std::fs::DirEntry>| match entry {
        Ok(entry) => entry.file_name().to_str()?.parse().ok().map(Ok),
        Err(error) => Some(Err(error)),
    };
    std::fs::read_dir("/proc")?.filter_map(pid).collect()
}

/// The number of processes of all users. Much faster than a scan.
pub(super) fn count() -> usize {
    pids().map_or(0, |pids| pids.len())
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
        assert_eq!(read("a\nb\u{1b}[2K\u{202e}").to_string(), "12 (a\\nb\\u{1b}[2K\\u{202e})");
        let going = Process::parse(12, &format!("12 (sh) {}", tail.replace("S 7 1 1", "X -1 -1 -1")));
        assert_eq!(going.map(|process| (process.group, process.is_dead)), Some((None, true)));
        for torn in ["", "12", "12 (sh", "12 (sh)", "12 (sh) S", "12 (sh) S x"] {
            assert_eq!(Process::parse(12, torn), None, "{torn}");
        }
    }
}
