//! The options of a client, and the choice of a store by URL.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::event::{Event, Hook};
use crate::locks::Locks;
use crate::password::Password;
use crate::store::Store;
#[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
use crate::store::file::{self, Access, File};
use crate::store::memory::Memory;
#[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
use crate::store::parameter;
#[cfg(all(feature = "redis", not(shuttle)))]
use crate::store::quorum::Quorum;
#[cfg(all(feature = "redis", not(shuttle)))]
use crate::store::redis::{self, Redis};
use crate::sync::Arc;
use crate::token::Owner;
use crate::ttl::Ttl;

/// The stores of this build, for messages.
const KNOWN: &[&str] = &[
    #[cfg(all(feature = "file", target_os = "linux"))]
    "`file:`",
    #[cfg(feature = "redis")]
    "`redis:`",
    #[cfg(feature = "redis")]
    "`redlock:`",
    "`memory:`",
];

/// Connects to the store at this URL, with the default options.
///
/// | URL | store |
/// |---|---|
/// | `file:` | every process of this user on this machine, in `$XDG_STATE_HOME/leasehold` or `~/.local/state/leasehold` |
/// | `file:PATH` | the same in another directory |
/// | `file:PATH?shared=group`, `?shared=all` | every process of this machine whose user is in the directory's group; of every user |
/// | `redis://HOST:PORT/DB` | one Redis or Valkey server; also `rediss://…` (TLS), `redis+unix:///PATH`, `valkey://…`, `valkeys://…` |
/// | `redlock:HOST,HOST,HOST` | a majority of independent Redis or Valkey servers (three or more); `redlocks:` for TLS |
/// | `memory:` | a new store in this process's memory; see [`Memory`] for sharing one between clients |
///
/// It needs a tokio runtime with I/O and time enabled (`#[tokio::main]`, `enable_all`).
///
/// # Errors
/// [`Error::Invalid`] for a URL of no store of this build, or outside a runtime; [`Error::System`]
/// in a runtime without I/O. (tokio panics there; that is caught unless panics abort.)
///
/// # Cancel safety
/// Dropped before its end, no client exists and nothing is left behind.
pub async fn connect(url: &str) -> Result<Locks> {
    Options::default().connect(url).await
}

/// The options of a client, and the defaults of its locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::{Event, Options};
///
/// let locks = Options::default()
///     .owner("report-3")
///     .ttl(Duration::from_secs(10))
///     .on_event(|event| async move {
///         if let Event::Lost { names, reason, .. } = event {
///             eprintln!("ALERT: {names} lost: {reason}");
///         }
///     })
///     .connect("memory:")
///     .await?;
/// # drop(locks); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until connected"]
pub struct Options {
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    pub(crate) hook: Option<Hook>,
    pub(crate) password: Option<Password>,
    pub(crate) max_value_bytes: usize,
    /// The first invalid value; connecting reports it.
    fault: Option<Error>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: Owner::this_process(),
            ttl: Ttl::DEFAULT,
            hook: None,
            password: None,
            max_value_bytes: Options::MAX_VALUE_BYTES,
            fault: None,
        }
    }
}

impl Options {
    /// The default of [`max_value_bytes`](Options::max_value_bytes): 1 MiB.
    pub const MAX_VALUE_BYTES: usize = 1 << 20;

    /// Sets the most bytes that this client writes as one [cell](crate::Cells) or
    /// [cached](crate::cells::cache::Cache) value, as stored; [1 MiB](Options::MAX_VALUE_BYTES) by
    /// default. A larger cell fails with [`Error::Invalid`]. A larger value from a cache's loader
    /// goes to its caller, with a warning in the log, and is not stored. Reads have no limit.
    ///
    /// A value is sent, compared and read as a whole, and blocks a server or a file store
    /// meanwhile: store large objects elsewhere and their location in the value.
    pub fn max_value_bytes(mut self, bytes: usize) -> Self {
        self.max_value_bytes = bytes;
        self
    }

    /// Sets the label of the holder, for people; `host:pid` by default.
    pub fn owner(self, label: impl AsRef<str>) -> Self {
        self.set(|options| Owner::new(label).map(|owner| options.owner = owner))
    }

    /// Sets the time that a lease lasts without renewal; 30 s by default.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|options| Ttl::new(ttl).map(|ttl| options.ttl = ttl))
    }

    /// Sets the password of the store, as an alternative to one in the URL; both together are an
    /// error. The user's name stays in the URL: `redis://alice@host/`.
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Calls this hook with every [`Event`], one by one, on its own task. The last hook set counts.
    ///
    /// A hook that is 1,024 events behind misses events, but never a loss.
    pub fn on_event<F, W>(mut self, hook: F) -> Self
    where
        F: Fn(Event) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        self.hook = Some(Arc::new(move |event| Box::pin(hook(event))));
        self
    }

    /// Makes a client of a custom store, or of one that several clients of this process share.
    ///
    /// # Errors
    /// [`Error::Invalid`] outside a tokio runtime, or for an invalid option.
    pub fn over(self, store: Arc<dyn Store>) -> Result<Locks> {
        Locks::start(store, self.checked()?)
    }

    pub(crate) fn checked(self) -> Result<Self> {
        self.fault.clone().map_or(Ok(self), Err)
    }

    fn set(mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Self {
        if let Err(error) = change(&mut self) {
            self.fault.get_or_insert(error);
        }
        self
    }

    /// Connects as the function [`connect`] does, with these options.
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn connect(self, url: &str) -> Result<Locks> {
        self.connecting(url).await
    }

    /// Like [`connect`](Options::connect), but returns `None` for a `file:` store that was never
    /// used: it holds no locks, and is not created.
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn connect_existing(self, url: &str) -> Result<Option<Locks>> {
        match self.place(url)? {
            #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
            Place::File(directory, access) if !file::exists(&directory, access)? => Ok(None),
            _ => self.connecting(url).await.map(Some),
        }
    }

    /// Boxed, so that opening a store is compiled once, with this crate, not in each caller.
    fn connecting(self, url: &str) -> BoxFuture<'_, Result<Locks>> {
        Box::pin(async move {
            let mut options = self.checked()?;
            let place = options.place(url)?;
            if let Some(warning) = options.warning(url) {
                tracing::warn!("{warning}");
            }
            let store: Arc<dyn Store> = match place {
                Place::Memory => Arc::new(Memory::new(Clock::system()?)),
                #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
                Place::File(directory, access) => Arc::new(File::open_for(directory, access).await?),
                #[cfg(all(feature = "redis", not(shuttle)))]
                Place::Redis(url) => redis::open_with(&url, options.password.as_ref()).await?,
                #[cfg(all(feature = "redis", not(shuttle)))]
                Place::Redlock(url) => {
                    let store = Quorum::open_with(&url, options.password.take().as_ref()).await?;
                    return Arc::new(store).client(options);
                }
            };
            // The store has the password from here on.
            options.password = None;
            options.over(store)
        })
    }

    /// Returns a warning about this URL: its password would cross the network in plain text, or its
    /// path is relative. [`connect`](Options::connect) logs it.
    pub fn warning(&self, url: &str) -> Option<&'static str> {
        match self.place(url) {
            #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
            Ok(Place::File(directory, _)) if directory.is_relative() => Some(
                "the path of the `file:` store is relative: from another working directory it is another store, with \
                 other locks; write an absolute path",
            ),
            #[cfg(all(feature = "redis", not(shuttle)))]
            Ok(Place::Redis(url)) => Redis::warning(&url, self.password.as_ref()),
            #[cfg(all(feature = "redis", not(shuttle)))]
            Ok(Place::Redlock(url)) => Quorum::warning(&url, self.password.as_ref()),
            _ => None,
        }
    }

    pub(crate) fn place(&self, url: &str) -> Result<Place> {
        // A URL may contain a password: errors show only its scheme.
        let refuse = |shown: &str, why: &str| Err(Error::invalid("store URL", shown, why));
        let Some((scheme, rest)) = url.split_once(':') else {
            let why = "it has no scheme; write SCHEME:…, such as `file:/var/lib/locks`";
            return refuse(if url.is_empty() { "" } else { "…" }, why);
        };
        let scheme = scheme.to_ascii_lowercase();
        if self.password.is_some() && matches!(scheme.as_str(), "memory" | "file") {
            return Err(Error::invalid("password", "…", "a store of this kind has none; leave it out"));
        }
        match scheme.as_str() {
            "memory" if rest.is_empty() => Ok(Place::Memory),
            "memory" => refuse("memory:…", "nothing follows `memory:`"),
            #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
            "file" => directory(rest).map(|(directory, access)| Place::File(directory, access)),
            #[cfg(all(feature = "redis", not(shuttle)))]
            "redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix" | "unix" => {
                Ok(Place::Redis(url.to_owned()))
            }
            #[cfg(all(feature = "redis", not(shuttle)))]
            "redlock" | "redlocks" => Ok(Place::Redlock(url.to_owned())),
            other => {
                let why = match feature_of(other) {
                    Some(feature) => format!(
                        "this build has no such store; turn on the feature `{feature}` of the crate `leasehold`"
                    ),
                    None => format!("no such store in this build; it has {}", KNOWN.join(", ")),
                };
                refuse(&format!("{scheme}:…"), &why)
            }
        }
    }
}

/// Returns the cargo feature of a scheme that this build does not support.
fn feature_of(scheme: &str) -> Option<&'static str> {
    match scheme {
        "file" if cfg!(target_os = "linux") => Some("file"),
        "redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix" | "unix" | "redlock"
        | "redlocks" => Some("redis"),
        _ => None,
    }
}

/// The store that a URL identifies.
pub(crate) enum Place {
    Memory,
    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    File(std::path::PathBuf, Access),
    #[cfg(all(feature = "redis", not(shuttle)))]
    Redis(String),
    #[cfg(all(feature = "redis", not(shuttle)))]
    Redlock(String),
}

/// Parses `file:`, `file:PATH`, `file:///PATH`, and decodes only a leading `~/` (home directory).
#[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
fn directory(rest: &str) -> Result<(std::path::PathBuf, Access)> {
    let refuse = |why: &str| Err(Error::invalid("store URL", format!("file:{rest}"), why));
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(path) if path.starts_with('/') => path,
        Some(path) => match path.strip_prefix("localhost") {
            Some(path) if path.starts_with('/') => path,
            _ => return refuse("a file store is on this machine; write `file:/path` or `file:///path`"),
        },
    };
    if path.contains('\0') {
        return refuse("a path has no zero bytes");
    }
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut access = Access::User;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        access = match pair.split_once('=') {
            Some(("shared", who)) => Access::parse(who).ok_or_else(|| {
                Error::invalid("parameter in the store URL", pair, "it is `shared=group` or `shared=all`")
            })?,
            given => return Err(parameter::unknown(given.map_or(pair, |(name, _)| name), &["shared"])),
        };
    }
    let path = match path.strip_prefix('~') {
        _ if path.is_empty() && access != Access::User => {
            return refuse("name the directory that users share, as in `file:/var/lib/locks?shared=group`");
        }
        _ if path.is_empty() => File::default_directory()?,
        None => path.into(),
        Some(below) if below.is_empty() || below.starts_with('/') => {
            file::in_home(below.trim_start_matches('/'))?
        }
        Some(_) => {
            return refuse(
                "`~USER` is not expanded; write the path of that home directory, or `file:./~…` for a directory of this name",
            );
        }
    };
    Ok((path, access))
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("owner", &self.owner)
            .field("ttl", &self.ttl)
            .field("hook", &self.hook.as_ref().map(|_| "set"))
            .field("password", &self.password)
            .finish()
    }
}
