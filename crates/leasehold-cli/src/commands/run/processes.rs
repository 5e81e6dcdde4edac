//! Everything that descends from this process, whatever group or session it has gone to: as a subreaper it inherits the
//! orphans, so that nothing gets out of the family.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};

/// After how many processes that were looked at something else is done.
const LOOKED_AT_ONCE: usize = 16;

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
        // A process chooses its name, which may have line breaks in it and whatever else moves a cursor.
        let name: String = self.name.chars().flat_map(char::escape_debug).collect();
        write!(f, "{} ({name})", self.pid.as_raw_nonzero())
    }
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Process::look(pid).ok().flatten()
    }

    /// `None` where it is gone.
    fn look(pid: i32) -> io::Result<Option<Self>> {
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
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        // The number of a child of ours is its own until it is reaped, which this thread does.
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

/// What descends from this process, but for those that are not the command's.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// Its children before it started anything (of a shell that became it), and the programs it starts for itself.
    strangers: HashSet<Pid>,
    /// The groups of those programs: what they leave in the background is not the command's either.
    strange_groups: HashSet<Pid>,
    /// The kernel's list of the main thread's children, where it offers one. Orphans are added to it: the kernel gives
    /// them to the first thread of their reaper.
    children: Option<File>,
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
            false => children_of(us, &all(&mut || true)?).map(|child| child.pid).collect(),
        };
        let children = File::open(format!("/proc/self/task/{us}/children")).ok();
        Ok(Family { strangers, strange_groups: HashSet::new(), children })
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

    /// Those who live, as far as they can be seen. Who comes and goes under the look may be missed. Calls `reap` now and then,
    /// which adds the children that it reaps to `reaped`, and says whether to go on.
    ///
    /// # Errors
    /// Where there is no descriptor left to look with, for example, or `reap` ends the look.
    pub(super) fn living(
        &self,
        reaped: &mut HashSet<Pid>,
        reap: &mut dyn FnMut(&mut HashSet<Pid>) -> bool,
    ) -> io::Result<Vec<Process>> {
        let us = getpid().as_raw_nonzero().get();
        let all = all(&mut || reap(reaped))?;
        let mut found = Vec::new();
        // Whoever was looked at before its parent was reaped, and the parent not at all, is the command's too.
        let mut parents: Vec<i32> = reaped.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        parents.push(us);
        while let Some(parent) = parents.pop() {
            for child in children_of(parent, &all).filter(|child| !self.is_strange(child)) {
                let is_reaped = reaped.contains(&child.pid);
                if !is_reaped {
                    parents.push(child.pid.as_raw_nonzero().get());
                }
                if !is_reaped && !child.is_dead {
                    found.push(child.clone());
                }
            }
        }
        Ok(found)
    }

    /// Kills those who are children of ours, which every orphan of the family becomes, and adds them to `killed`. Says how many
    /// were not in it before.
    ///
    /// It reads one file and takes a few microseconds, where a look at all processes takes milliseconds: quick enough to
    /// overtake processes that fork and exit, since one that has a SIGKILL pending does not fork any more.
    pub(super) fn kill_children(&self, killed: &mut HashSet<Pid>) -> usize {
        let mut list = String::new();
        let Some(mut file) = self.children.as_ref() else { return 0 };
        if file.rewind().and_then(|()| file.read_to_string(&mut list)).is_err() {
            return 0;
        }
        let before = killed.len();
        // The youngest first: the others may be dead already.
        for pid in list.split_whitespace().rev().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let is_strange = self.strangers.contains(&pid)
                || (!self.strange_groups.is_empty()
                    && getpgid(Some(pid)).is_ok_and(|group| self.strange_groups.contains(&group)));
            if !is_strange {
                let _ = kill_process(pid, Signal::KILL);
                killed.insert(pid);
            }
        }
        killed.len() - before
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

/// Every process that can be seen, by parent. Goes on for as long as `goes_on`, which it calls now and then.
fn all(goes_on: &mut dyn FnMut() -> bool) -> io::Result<BTreeMap<i32, Vec<Process>>> {
    // The numbers first, or the look would never end where processes are started faster than they are looked at.
    let pids = numbers()?;
    let mut all: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for (i, pid) in pids.into_iter().enumerate() {
        if i % LOOKED_AT_ONCE == 0 && !goes_on() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if let Some(process) = Process::look(pid)? {
            all.entry(process.parent).or_default().push(process);
        }
    }
    Ok(all)
}

fn numbers() -> io::Result<Vec<i32>> {
    let number = |entry: io::Result<std::fs::DirEntry>| match entry {
        Ok(entry) => entry.file_name().to_str()?.parse().ok().map(Ok),
        Err(error) => Some(Err(error)),
    };
    std::fs::read_dir("/proc")?.filter_map(number).collect()
}

/// How many processes there are, of all users. Much quicker than a look at each of them.
pub(super) fn count() -> usize {
    numbers().map_or(0, |pids| pids.len())
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
