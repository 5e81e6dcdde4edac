//! The processes that descend from this process, whatever their group or session: this process is a
//! subreaper, so that orphans become its children.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};

/// How many processes a scan reads before it reaps again.
const SCAN_BATCH: usize = 16;

/// How many children one sweep kills.
const SWEEP_BATCH: usize = 512;

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    /// `None` if it is not visible from this PID namespace.
    pub(super) group: Option<Pid>,
    session: i32,
    name: String,
    is_dead: bool,
    /// With the pid this is unique; a pid alone may be used again.
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

    /// `None` if it has ended.
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

/// The processes that descend from this process, except those that do not belong to the command.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Children that a shell had started before it became this process, and the programs that this
    /// process starts for itself.
    excluded: HashSet<Pid>,
    /// The groups of those programs: the processes that they leave in the background are excluded
    /// too.
    excluded_groups: HashSet<Pid>,
    /// The kernel's list of the children of the main thread, where the kernel has one. Orphans
    /// appear in it: the kernel makes them children of the first thread of their reaper.
    children: Option<File>,
}

impl Descendants {
    /// Makes this process the reaper of its descendants. Must be called before the first child is
    /// started.
    pub(super) fn adopt() -> io::Result<Self> {
        let own = getpid().as_raw_nonzero().get();
        // The numbers in the /proc of another PID namespace are those of other processes.
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

    /// Forgets a process that was reaped: its number may be used again.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.excluded.remove(&pid);
    }

    fn is_excluded(&self, pid: Pid, group: impl FnOnce() -> Option<Pid>) -> bool {
        let is_in = |groups: &HashSet<Pid>| group().is_some_and(|group| groups.contains(&group));
        self.excluded.contains(&pid) || (!self.excluded_groups.is_empty() && is_in(&self.excluded_groups))
    }

    /// The descendants that run, of all processes by parent. `reaped` are the children that were
    /// reaped while `all` was read: their children were read before they became children of this
    /// process.
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

    /// Kills children of this process, which every orphan becomes, and adds them to `killed`. Skips
    /// those that are in it. Returns how many it killed; at most [`SWEEP_BATCH`].
    ///
    /// It reads one file, where a scan of all processes takes milliseconds: fast enough to overtake
    /// processes that fork and exit, since a process with a pending SIGKILL does not fork any more.
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

/// Whether there is a shell that would continue this process after a stop. Without one it would
/// stay stopped, and the terminal's Ctrl-Z has no effect.
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

/// Reads every process that is visible, by parent. It may miss processes that start or end
/// meanwhile. It calls `goes_on` now and then.
///
/// # Errors
/// `goes_on` returned false, or `/proc` cannot be read, for lack of a descriptor for example.
pub(super) fn all(goes_on: &mut dyn FnMut() -> bool) -> io::Result<BTreeMap<i32, Vec<Process>>> {
    // The numbers first: the scan would never end where processes start faster than it reads them.
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
