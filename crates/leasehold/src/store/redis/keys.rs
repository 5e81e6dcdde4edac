//! Where things are on the server.

use redis::{Cmd, RedisWrite};

use crate::claim::Names;
use crate::name::Name;

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

    pub(super) fn write(&self, name: &Name, to: &mut Cmd) {
        to.write_arg_fmt(format_args!("{}{name}", self.prefix));
    }
}
