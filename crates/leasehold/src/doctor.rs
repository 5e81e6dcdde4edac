//! An examination of a store's fitness for locks: findings in plain words, with advice.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use leasehold::doctor::{self, Verdict};
//!
//! let report = doctor::examine("memory:").await?;
//! for finding in report.findings.iter().filter(|finding| finding.verdict > Verdict::Good) {
//!     eprintln!("{}: {}", finding.check, finding.what);
//! }
//! # Ok(()) }
//! ```

use std::fmt;
use std::time::Duration;

use crate::claim::{Acquired, Claim, Share, Ticket, Wait};
use crate::clock::Clock;
use crate::connect::{Options, Place};
use crate::error::{Error, Result, Short};
use crate::name::Name;
use crate::store::Store;
use crate::store::memory::Memory;
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// The number of trial locks, for a median of their times.
const TRIES: usize = 5;

/// The TTL of a trial lock: if the examination is killed, it stays that long.
const TTL_MS: u64 = 10_000;

/// Examines the store at this URL, with the default options.
///
/// The only change is a lock of a random name, which is acquired and released a few times. A
/// finding says so if this client has no right to see something.
///
/// # Errors
/// As [`connect`](crate::connect), if the store cannot be reached or refuses the client.
///
/// # Cancel safety
/// Can be dropped at any time; its lock expires within seconds.
pub async fn examine(url: &str) -> Result<Report> {
    Options::default().examine(url).await
}

impl Options {
    /// Like [`doctor::examine`](examine), with these options.
    ///
    /// # Cancel safety
    /// As [`doctor::examine`](examine).
    pub async fn examine(self, url: &str) -> Result<Report> {
        let options = self.checked()?;
        let (store, findings) = match options.place(url)? {
            Place::Memory => {
                let store = Memory::new(Clock::system()?);
                let what = "in the memory of this process, for its own tasks and threads";
                ("memory", vec![Finding::good("store", what), tried(&store).await])
            }
            #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
            Place::File(directory, access) => {
                ("file", crate::store::file::examine(&directory, access).await?)
            }
            #[cfg(all(feature = "redis", not(shuttle)))]
            Place::Redis(url) => {
                ("redis", crate::store::redis::examine(&url, options.password.as_ref()).await?)
            }
            #[cfg(all(feature = "redis", not(shuttle)))]
            Place::Redlock(url) => {
                ("redlock", crate::store::quorum::examine(&url, options.password.as_ref()).await?)
            }
        };
        Ok(Report { store, findings })
    }
}

/// The result of an examination.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The URL scheme of the store.
    pub store: &'static str,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the worst verdict of the findings.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good)
    }
}

/// A verdict, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works, but may cause trouble later; or it could not be checked.
    Caution,
    /// Locks do not work, or are not reliable.
    Bad,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Good => "good",
            Verdict::Caution => "caution",
            Verdict::Bad => "bad",
        })
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The check, in a word or two.
    pub check: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The observation.
    pub what: String,
    /// The advice; present unless the verdict is good.
    pub advice: Option<String>,
}

impl Finding {
    pub(crate) fn good(check: &'static str, what: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Good, what: what.into(), advice: None }
    }

    pub(crate) fn caution(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Caution, what: what.into(), advice: Some(advice.into()) }
    }

    pub(crate) fn bad(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Bad, what: what.into(), advice: Some(advice.into()) }
    }
}

/// Acquires and releases a lock, as a client does.
pub(crate) async fn tried(store: &dyn Store) -> Finding {
    const SLOW: Duration = Duration::from_millis(100);
    match taken_and_released(store).await {
        Ok(took) => {
            let what = format!("a lock was taken and given back in {} (median of {TRIES})", Fine(took));
            let advice = "use TTLs of many times that, and a nearer or less busy store";
            if took < SLOW { Finding::good("lock", what) } else { Finding::caution("lock", what, advice) }
        }
        Err(error) => not_taken(&error),
    }
}

pub(crate) fn not_taken(error: &Error) -> Finding {
    Finding::bad("lock", format!("no lock could be taken: {error}"), "see what else is not good here")
}

async fn taken_and_released(store: &dyn Store) -> Result<Duration> {
    let clock = store.clock();
    let mut took = Vec::new();
    let number = Token::fresh(&Owner::this_process())?;
    let name = Name::new(format!("leasehold-doctor-{}", &number.expose()[..16]))?;
    for _ in 0..TRIES {
        let token = Token::fresh(&Owner::this_process())?;
        let mut ticket = Ticket { names: name.clone().into(), token, share: Share::Exclusive, fence: None };
        let claim = Claim {
            ticket: ticket.clone(),
            ttl: Ttl::from_ms(TTL_MS),
            wait: Wait::Never,
            fences: 1,
            detached: false,
        };
        let since = clock.now();
        if let Acquired::Granted(grant) = store.acquire(&claim).await? {
            ticket.fence = Some(grant.fence);
        }
        store.release(&ticket).await?;
        took.push(clock.now().since(since));
    }
    Ok(median(&mut took))
}

pub(crate) fn median(of: &mut [Duration]) -> Duration {
    of.sort();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// A duration, with fractions of a millisecond if it is short.
pub(crate) struct Fine(pub(crate) Duration);

impl fmt::Display for Fine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs_f64() * 1_000.0 {
            ms @ 0.0..10.0 => write!(f, "{ms:.2} ms"),
            _ => Short(self.0).fmt(f),
        }
    }
}

/// A number of bytes in a readable unit.
#[cfg(any(all(feature = "file", target_os = "linux"), feature = "redis"))]
pub(crate) struct Bytes(pub(crate) u64);

#[cfg(any(all(feature = "file", target_os = "linux"), feature = "redis"))]
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1_024 {
            return write!(f, "{} bytes", self.0);
        }
        let mut size = self.0 as f64 / 1_024.0;
        let mut unit = 0;
        while size >= 1_024.0 && unit + 1 < UNITS.len() {
            (size, unit) = (size / 1_024.0, unit + 1);
        }
        let digits = if size < 10.0 { 1 } else { 0 };
        write!(f, "{size:.digits$} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_of_a_report_is_its_worst() {
        let report = |findings: &[Finding]| Report { store: "memory", findings: findings.to_vec() }.verdict();
        let [good, caution, bad] =
            [Finding::good("a", ""), Finding::caution("b", "", ""), Finding::bad("c", "", "")];
        assert_eq!(report(&[]), Verdict::Good);
        assert_eq!(report(&[good.clone(), caution.clone()]), Verdict::Caution);
        assert_eq!(report(&[bad, good, caution]), Verdict::Bad);
    }

    #[cfg(any(all(feature = "file", target_os = "linux"), feature = "redis"))]
    #[test]
    fn sizes_are_shown_as_people_say_them() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1_023, "1023 bytes"),
            (1_536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (50 << 30, "50 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
