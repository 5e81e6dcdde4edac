//! Where things are on the server.

use std::fmt::Display;

use redis::{Cmd, RedisWrite};

use crate::claim::Names;
use crate::name::Name;

/// The prefix where the URL names none. Values have plain names then, for other programs.
pub(super) const PREFIX: &str = "lock:";

#[derive(Debug)]
pub(super) struct Keys {
    /// What stands before a name.
    pub(super) prefix: String,
    /// Where the highest fence is.
    fence: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Keys { prefix: prefix.to_owned(), fence: format!("{{{prefix}}}:fence") }
    }

    /// As the scripts want them, with their number before them.
    pub(super) fn write_all(&self, names: &Names, to: &mut Cmd) {
        self.write_count(names.into_iter().count(), to);
        names.into_iter().for_each(|name| self.write(name, to));
    }

    /// What stands before so many keys of names.
    pub(super) fn write_count(&self, names: usize, to: &mut Cmd) {
        to.arg(names + 1).arg(&self.fence);
    }

    /// The key of a value: `cell:NAME`, or with a prefix of the user's own `PREFIX{cell:NAME}`. A lock's name has no braces, so no
    /// lock of that prefix has such a key.
    pub(super) fn of_value(&self, value: &impl Display) -> String {
        match self.prefix.as_str() {
            PREFIX => value.to_string(),
            prefix => format!("{prefix}{{{value}}}"),
        }
    }

    /// A key beside that of a value, in the same slot: `{cell:NAME}:watch`, or `PREFIX{cell:NAME}/watch`, which
    /// differs also where the prefix is empty.
    pub(super) fn beside_value(&self, value: &impl Display, what: &str) -> String {
        match self.prefix.as_str() {
            PREFIX => format!("{{{value}}}:{what}"),
            prefix => format!("{prefix}{{{value}}}/{what}"),
        }
    }

    pub(super) fn write(&self, name: &Name, to: &mut Cmd) {
        to.write_arg_fmt(format_args!("{}{name}", self.prefix));
    }
}
