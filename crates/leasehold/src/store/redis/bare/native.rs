//! What some servers do in one command: compare a key with a value, and change it if it is equal.

use redis::{Cmd, RedisError, Value, cmd};

/// How a server compares and deletes. One that can, can also compare and set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Native {
    /// `DELIFEQ`: Valkey 9.
    Delifeq,
    /// `DELEX … IFEQ`: Redis 8.4.
    Delex,
}

impl Native {
    pub(super) const ALL: [Native; 2] = [Native::Delifeq, Native::Delex];

    /// Deletes the key if this is its value: 1, or else 0.
    pub(super) fn delete(self, key: &str, value: &str) -> Cmd {
        let mut command = match self {
            Native::Delifeq => cmd("DELIFEQ"),
            Native::Delex => cmd("DELEX"),
        };
        command.arg(key);
        if self == Native::Delex {
            command.arg("IFEQ");
        }
        command.arg(value);
        command
    }

    /// Sets the key if this is its value, and its end: OK, or else nothing. A key that is not there is not made.
    pub(super) fn set(self, key: &str, from: &str, to: &str, ttl_ms: u64) -> Cmd {
        let mut command = cmd("SET");
        command.arg(key).arg(to).arg("IFEQ").arg(from).arg("PX").arg(ttl_ms);
        command
    }
}

/// Whether a server that was asked to compare and delete knows how to; it had nothing to delete.
pub(super) fn is_known(answer: &Result<Value, RedisError>) -> bool {
    matches!(answer, Ok(Value::Int(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Cmd) -> Vec<String> {
        let words = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => "?".to_owned(),
        });
        words.collect()
    }

    #[test]
    fn each_server_is_asked_in_its_own_words() {
        assert_eq!(words(&Native::Delifeq.delete("k", "v")), ["DELIFEQ", "k", "v"]);
        assert_eq!(words(&Native::Delex.delete("k", "v")), ["DELEX", "k", "IFEQ", "v"]);
        for native in Native::ALL {
            assert_eq!(words(&native.set("k", "a", "b", 7)), ["SET", "k", "b", "IFEQ", "a", "PX", "7"]);
        }
    }
}
