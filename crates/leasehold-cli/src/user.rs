//! The user and the process in the labels of locks.

use std::ffi::OsStr;
use std::path::Path;

use leasehold::Owner;
use rustix::process::{geteuid, getppid};

/// `host:pid (user: command)` of this process, with the file name of its command. Arguments are
/// left out: they may be secret.
pub(crate) fn label_of_run(program: &OsStr) -> Owner {
    let command = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    Owner::of_process(std::process::id(), &user(), &command)
}

/// The label of the calling process: `lock` itself is gone before an operator looks.
pub(crate) fn label_of_caller() -> Owner {
    let pid = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    Owner::of_process(pid, &user(), command.trim_end())
}

/// The user's name in /etc/passwd, or else in the environment, or else the number.
fn user() -> String {
    let uid = geteuid().as_raw().to_string();
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = known.lines().map(|line| line.split(':'));
    let named = lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    let said = || ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.or_else(said).unwrap_or(uid)
}
