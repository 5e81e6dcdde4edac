//! `Script`: a change of several keys, in Lua, that a server runs in one step.

use std::fmt;

use super::store::{Answer, Key, Kind, ScriptKey};
use crate::error::{Error, Result, change_valid};
use crate::locks::Client;
use crate::name::IntoName;
use crate::sync::Arc;

/// A Lua script that a Redis or Valkey server runs in one step, from
/// [`Cells::script`](super::Cells::script).
///
/// The client sends the source once, and again if the server has forgotten it; else its digest.
///
/// A script that fails half way leaves what it wrote: check first, then write. It notifies no
/// watcher: a client that watches a cell finds its writes within a second.
///
/// ```no_run
/// # async fn example(locks: leasehold::Locks) -> leasehold::Result<()> {
/// let take = locks.cells().script(
///     "local left = tonumber(redis.call('GET', KEYS[1]) or '0') - tonumber(ARGV[1])
///      if left < 0 then return nil end
///      redis.call('SET', KEYS[1], string.format('%d', left))
///      return left",
/// );
/// let left: Option<i64> = take.call().counter("stock").arg(3).run().await?;
/// # let _ = left; Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a script does nothing until it is called"]
pub struct Script {
    client: Arc<Client>,
    source: Arc<String>,
}

/// One call of a [`Script`], with its keys and arguments in the order of the calls that add them.
#[derive(Clone)]
#[must_use = "a call does nothing until it is run"]
pub struct Call {
    script: Script,
    keys: Result<Vec<ScriptKey>>,
    args: Vec<Vec<u8>>,
}

impl Script {
    pub(crate) fn new(client: Arc<Client>, source: String) -> Self {
        Script { client, source: Arc::new(source) }
    }

    /// Begins a call.
    pub fn call(&self) -> Call {
        Call { script: self.clone(), keys: Ok(Vec::new()), args: Vec::new() }
    }
}

impl Call {
    /// Adds the key of this cell to `KEYS`.
    pub fn cell(self, name: impl IntoName) -> Self {
        self.with_key(name.into_name().map(|name| ScriptKey::Value(Key::new(Kind::Cell, name))))
    }

    /// Adds the key of this counter to `KEYS`.
    pub fn counter(self, name: impl IntoName) -> Self {
        self.with_key(name.into_name().map(|name| ScriptKey::Value(Key::new(Kind::Counter, name))))
    }

    /// Adds this key to `KEYS`, without the prefix of the store URL. To share the slot of a cell,
    /// it contains the cell's key as its tag: `{cell:NAME}:log` beside the cell `NAME`.
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.with_key(Ok(ScriptKey::Raw(key.as_ref().to_vec())))
    }

    /// Adds an argument to `ARGV`.
    pub fn arg(mut self, arg: impl Into<Arg>) -> Self {
        self.args.push(arg.into().0);
        self
    }

    fn with_key(mut self, key: Result<ScriptKey>) -> Self {
        change_valid(&mut self.keys, |keys| key.map(|key| keys.push(key)));
        self
    }

    /// Runs the script on the server, and returns its answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no key, if the keys are not all in one slot (nothing is sent
    /// then), or if the answer is not of this type; [`Error::Refused`] if the server or the script
    /// refuses: what the script wrote before stays; [`Error::Unreachable`] if no answer came: it
    /// may have run; [`Error::Unsupported`] if the store runs no scripts.
    ///
    /// # Cancel safety
    /// If dropped, the whole script has run, or nothing of it.
    pub async fn run<R: FromAnswer>(&self) -> Result<R> {
        let keys = self.keys.as_ref().map_err(Clone::clone)?;
        one_slot(keys)?;
        let client = &self.script.client;
        let store = client.open_cells("scripts")?;
        let answer = client.in_time(store.run(&self.script.source, keys, &self.args)).await?;
        R::from_answer(answer).ok_or_else(|| {
            Error::invalid("answer of a script", "…", "it is not of the type that was asked for")
        })
    }
}

/// An argument of a script.
#[derive(Clone)]
pub struct Arg(Vec<u8>);

macro_rules! args {
    ($($as_text:ty),*; $($as_bytes:ty),*) => {
        $(impl From<$as_text> for Arg {
            fn from(arg: $as_text) -> Self {
                Arg(arg.to_string().into_bytes())
            }
        })*
        $(impl From<$as_bytes> for Arg {
            fn from(arg: $as_bytes) -> Self {
                Arg(arg.to_vec())
            }
        })*
    };
}

args!(i32, u32, i64, u64, usize, &str, String, crate::fence::Fence; &[u8], Vec<u8>, &Vec<u8>);

/// A type that the answer of a script can be read as: a number, text, bytes, a list, or an option.
pub trait FromAnswer: Sized {
    /// Converts the answer; `None` if it is not of this type.
    fn from_answer(answer: Answer) -> Option<Self>;
}

impl FromAnswer for Answer {
    fn from_answer(answer: Answer) -> Option<Self> {
        Some(answer)
    }
}

/// Accepts any answer.
impl FromAnswer for () {
    fn from_answer(_: Answer) -> Option<Self> {
        Some(())
    }
}

/// Accepts a number, also in digits.
impl FromAnswer for i64 {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Number(number) => Some(number),
            Answer::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// Accepts 1, 0, or nothing, which is Lua's `false`.
impl FromAnswer for bool {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Number(number @ (0 | 1)) => Some(number == 1),
            Answer::Nothing => Some(false),
            _ => None,
        }
    }
}

impl FromAnswer for Vec<u8> {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl FromAnswer for String {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Bytes(bytes) => String::from_utf8(bytes).ok(),
            Answer::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

impl<T: FromAnswer> FromAnswer for Option<T> {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::Nothing => Some(None),
            answer => T::from_answer(answer).map(Some),
        }
    }
}

impl<T: FromAnswer> FromAnswer for Vec<T> {
    fn from_answer(answer: Answer) -> Option<Self> {
        match answer {
            Answer::List(answers) => answers.into_iter().map(T::from_answer).collect(),
            _ => None,
        }
    }
}

/// Checks that all keys are in one slot of a cluster. Otherwise no server could run the script.
fn one_slot(keys: &[ScriptKey]) -> Result<()> {
    // A prefix before the tag does not change the slot.
    let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.bytes(Key::to_string)).collect();
    let refused = |given: String, why| Err(Error::invalid("keys of a script", given, why));
    let Some((first, others)) = keys.split_first() else {
        return refused(
            "none".to_owned(),
            "name every key it touches: by them the server is found that runs it",
        );
    };
    match others.iter().find(|key| slot(key) != slot(first)) {
        None => Ok(()),
        Some(key) => {
            let both = format!("{} and {}", String::from_utf8_lossy(first), String::from_utf8_lossy(key));
            refused(
                both,
                "they may be on different servers; give them the same tag in braces, as in `{cell:NAME}:log`",
            )
        }
    }
}

/// Returns the CRC-16 (XMODEM) of the text in the first braces, or of the key if that is empty.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let mut crc: u16 = 0;
    for byte in tag.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16_384
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("bytes", &self.source.len()).finish_non_exhaustive()
    }
}

/// Shows no arguments, which may be secret.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.as_ref().map(Vec::len);
        f.debug_struct("Call").field("keys", &keys).field("args", &self.args.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arg({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_where_a_cluster_has_it() {
        // The slots that `CLUSTER KEYSLOT` returns.
        for (key, at) in
            [("123456789", 12_739), ("foo", 12_182), ("{foo}:bar", 12_182), ("a{foo}{bar}", 12_182)]
        {
            assert_eq!(slot(key.as_bytes()), at, "{key}");
        }
        assert_eq!(slot(b"{}foo"), slot(b"{}foo"));
        assert_ne!(slot(b"{}foo"), slot(b"foo"), "an empty tag is none");
        assert_eq!(slot(b"cell:x"), slot(b"{cell:x}:log"));
    }
}
