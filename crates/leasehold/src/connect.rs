//! URL → store, and the options of a client.

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::event::{Event, Hook};
use crate::locks::Locks;
use crate::store::Store;
use crate::store::memory::Memory;
use crate::sync::Arc;
use crate::token::Owner;
use crate::ttl::Ttl;

/// Connects to the store at this URL, with the default options.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a new store in this process's memory; see [`Memory`] for sharing one between clients |
///
/// # Errors
/// [`Error::Invalid`] for a URL that names no store of this build.
///
/// # Cancel safety
/// Dropped before its end, there is no client, and nothing stays behind.
pub async fn connect(url: &str) -> Result<Locks> {
    Options::default().connect(url).await
}

/// What a client does where a lock says nothing of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::{Event, Options};
///
/// let locks = Options::default()
///     .owner("report-3")?
///     .ttl(Duration::from_secs(10))?
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
}

impl Default for Options {
    fn default() -> Self {
        Options { owner: Owner::this_process(), ttl: Ttl::DEFAULT, hook: None }
    }
}

impl Options {
    /// Who holds the locks, for people; `host:pid` by default.
    pub fn owner(mut self, label: impl AsRef<str>) -> Result<Self> {
        self.owner = Owner::new(label)?;
        Ok(self)
    }

    /// How long a lease lives without renewal; 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Result<Self> {
        self.ttl = Ttl::new(ttl)?;
        Ok(self)
    }

    /// Calls this with every [`Event`], one after the other, on a task of its own.
    ///
    /// A hook that cannot keep up (1,024 events behind) misses events, but never a loss.
    pub fn on_event<F, W>(mut self, hook: F) -> Self
    where
        F: Fn(Event) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        self.hook = Some(Arc::new(move |event| Box::pin(hook(event))));
        self
    }

    /// Connects to the store at this URL.
    ///
    /// # Errors
    /// As [`connect`].
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn connect(self, url: &str) -> Result<Locks> {
        // A URL may carry a password: errors name the scheme and nothing more.
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let store: Arc<dyn Store> = match scheme {
            "memory" if rest.is_empty() => Arc::new(Memory::new(Clock::system()?)),
            "memory" => return Err(Error::invalid("store URL", "memory:…", "nothing follows `memory:`")),
            _ if url.is_empty() => {
                return Err(Error::invalid("store URL", "", "it is empty; try `memory:`"));
            }
            _ => {
                let shown = if url.contains(':') { format!("{scheme}:…") } else { "…".to_owned() };
                return Err(Error::invalid(
                    "store URL",
                    shown,
                    "no such store in this build; it has `memory:`",
                ));
            }
        };
        Locks::over(store, self)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("owner", &self.owner)
            .field("ttl", &self.ttl)
            .field("hook", &self.hook.as_ref().map(|_| "set"))
            .finish()
    }
}
