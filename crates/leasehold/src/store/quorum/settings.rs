//! Which nodes, and by what rules they are asked: from a URL, or from a [`Builder`].

use std::time::Duration;

use super::Quorum;
use crate::error::{Error, Result, Short};
use crate::name::forges_output;
use crate::password::Password;
use crate::store::parameter;
use crate::store::redis::address::Address;
use crate::store::redis::tls;
use crate::ttl::Ttl;

/// Beside the share of the TTL that clocks may drift by.
const DRIFT_LEAST: Duration = Duration::from_millis(2);

/// Fewer nodes are no quorum that could lose one; more take longer to agree than they are worth.
const NODES_LEAST: usize = 3;
const NODES_MOST: usize = 31;

/// The parameters of a `redlock:` URL.
const KNOWN: [&str; 12] = [
    "prefix",
    "timeout",
    "retry_delay",
    "retry_count",
    "drift",
    "quorum",
    "max_ttl",
    "skew",
    "quarantine",
    "ca",
    "cert",
    "key",
];

/// The rules, which are the same for every client of these nodes.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) prefix: String,
    /// How long a node has for an answer.
    pub(super) timeout: Duration,
    pub(super) retry_delay: Duration,
    pub(super) retry_count: u32,
    pub(super) drift_factor: f64,
    /// How many nodes have to agree.
    pub(super) quorum: usize,
    /// No lease is longer.
    pub(super) max_ttl: Ttl,
    /// S: how far a fence may be from a node's clock, and so how far the clocks from each other.
    pub(super) skew: Duration,
    /// For how long a node that forgot has no vote; zero for a fleet that trusts its nodes never to forget.
    pub(super) quarantine: Duration,
}

impl Settings {
    /// How long a holder may believe in a grant, counted from before the request.
    pub(super) fn validity(&self, ttl: Ttl) -> Duration {
        let drift = ttl.as_duration().mul_f64(self.drift_factor) + DRIFT_LEAST;
        ttl.as_duration().saturating_sub(drift)
    }

    /// How long a node remembers a fence: until no lease of before it can be left, and no fence be asked for that is not far
    /// above it, whatever the clocks said at the time.
    pub(super) fn remembered(&self) -> Duration {
        self.max_ttl.as_duration() + 4 * self.skew + Duration::from_secs(1)
    }

    /// The least time for which a node that forgot has no vote: as long as a lease may last that it forgot, and by its own clock,
    /// which may be set right by as much as twice the skew in the meantime.
    fn least_quarantine(&self) -> Duration {
        self.max_ttl.as_duration().max(2 * self.skew + Duration::from_millis(1)) + 2 * self.skew
    }

    pub(super) fn check(&self, ttl: Ttl) -> Result<()> {
        if ttl <= self.max_ttl {
            return Ok(());
        }
        let why = format!(
            "on this store a TTL is at most {} (`max_ttl`); use a shorter one, or set `?max_ttl=` to more, in ms, for every \
             client of these nodes",
            self.max_ttl
        );
        Err(Error::invalid("TTL", ttl.to_string(), why))
    }
}

/// A quorum store that is yet to be opened.
///
/// Every client of the same nodes has to say the same `max_ttl`, `skew`, `quorum` and `prefix`.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use leasehold::{Options, store::quorum::Quorum};
///
/// let store = Quorum::builder(["redis-1", "redis-2:6380", "rediss://redis-3"])
///     .timeout(Duration::from_millis(30))
///     .max_ttl(Duration::from_secs(20))
///     .open()
///     .await?;
/// let locks = Arc::new(store).client(Options::default())?;
/// # drop(locks); Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is opened"]
pub struct Builder {
    nodes: Vec<String>,
    scheme: &'static str,
    files: tls::Files,
    password: Option<Password>,
    quorum: Option<usize>,
    /// `None` for the one that follows from the other settings.
    quarantine: Option<Duration>,
    settings: Settings,
    fault: Option<Error>,
}

impl Builder {
    pub(super) fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Builder {
            nodes: nodes.into_iter().map(Into::into).collect(),
            scheme: "redis",
            files: tls::Files::default(),
            password: None,
            quorum: None,
            quarantine: None,
            settings: Settings {
                prefix: "lock:".to_owned(),
                timeout: Duration::from_millis(50),
                retry_delay: Duration::from_millis(200),
                retry_count: 3,
                drift_factor: 0.01,
                quorum: 0,
                max_ttl: Ttl::from_ms(60_000),
                skew: Duration::from_secs(5),
                quarantine: Duration::ZERO,
            },
            fault: None,
        }
    }

    /// `redlock:HOST1,HOST2,HOST3?NAME=VALUE&…`
    pub(super) fn parse(url: &str) -> Result<Self> {
        // A node may carry a password: errors name the scheme and nothing more.
        let refuse = |why: &str| Err(Error::invalid("store URL", "redlock:…", why));
        tls::refuse_fragment(url)?;
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, nodes) = match place.split_once(':') {
            Some((scheme, nodes)) if scheme.eq_ignore_ascii_case("redlock") => ("redis", nodes),
            Some((scheme, nodes)) if scheme.eq_ignore_ascii_case("redlocks") => ("rediss", nodes),
            _ => return refuse("write redlock:HOST1,HOST2,HOST3,…"),
        };
        let nodes = nodes.strip_prefix("//").unwrap_or(nodes).trim_end_matches('/');
        let mut builder = Builder::new(nodes.split(',').filter(|node| !node.is_empty()));
        builder.scheme = scheme;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return refuse("after the question mark write NAME=VALUE&NAME=VALUE");
            };
            // An `@` tells that the query began inside a password: nothing of it is shown.
            builder = match builder.parameter(name, value) {
                Err(_) if query.contains('@') => {
                    return refuse("a parameter is not valid; in a password write `%3F` for a question mark");
                }
                builder => builder?,
            };
        }
        Ok(builder)
    }

    fn parameter(mut self, name: &str, value: &str) -> Result<Self> {
        let number = |most: u64| match value.parse() {
            Ok(number) if number <= most => Ok(number),
            _ => {
                let why = format!("write a whole number, at most {most}; times are in milliseconds");
                Err(Error::invalid("parameter in the store URL", format!("{name}={value}"), why))
            }
        };
        let ms = |most: u64| number(most).map(Duration::from_millis);
        match name {
            "prefix" => self = self.prefix(value),
            "timeout" => self = self.timeout(ms(60_000)?),
            "retry_delay" => self = self.retry_delay(ms(60_000)?),
            "retry_count" => self = self.retry_count(number(1_000_000)? as u32),
            "drift" => match value.parse() {
                Ok(factor) => self = self.drift_factor(factor),
                Err(_) => {
                    return Err(Error::invalid(
                        "drift in the store URL",
                        value,
                        "write a part of the TTL, such as 0.01",
                    ));
                }
            },
            "quorum" => self = self.quorum(number(NODES_MOST as u64)? as usize),
            "max_ttl" => self = self.max_ttl(ms(Ttl::MAX.as_ms())?),
            "skew" => self = self.skew(ms(3_600_000)?),
            "quarantine" => {
                self = match value {
                    "auto" => self,
                    "off" => self.without_quarantine(),
                    _ => self.quarantine(ms(Ttl::MAX.as_ms() * 2)?),
                }
            }
            "ca" => self.files.ca = Some(value.into()),
            "cert" => self.files.cert = Some(value.into()),
            "key" => self.files.key = Some(value.into()),
            _ => return Err(parameter::unknown(name, &KNOWN)),
        }
        Ok(self)
    }

    fn set(
        mut self,
        is_good: bool,
        what: &'static str,
        given: String,
        why: &str,
        change: impl FnOnce(&mut Self),
    ) -> Self {
        if is_good {
            change(&mut self);
        } else {
            self.fault.get_or_insert_with(|| Error::invalid(what, given, why));
        }
        self
    }

    /// What stands before a name in its key; `lock:` by default.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        let is_good = !prefix.chars().any(|c| forges_output(c) || matches!(c, '{' | '}' | '%'));
        let why = "a prefix has no braces, percent signs or control characters";
        self.set(is_good, "prefix", prefix.clone(), why, |it| it.settings.prefix = prefix)
    }

    /// How long a node has for an answer before it counts as silent; 50 ms by default. It should be far below the TTLs.
    pub fn timeout(self, timeout: Duration) -> Self {
        let is_good = (1..=60_000).contains(&timeout.as_millis());
        let why = "a node has 1 to 60000 ms for an answer";
        self.set(is_good, "timeout", Short(timeout).to_string(), why, |it| it.settings.timeout = timeout)
    }

    /// At most this long (and at least half of it) one who waits rests before it asks again, unless it is told that the lock is
    /// free; 200 ms by default.
    pub fn retry_delay(self, delay: Duration) -> Self {
        let is_good = (1..=60_000).contains(&delay.as_millis());
        self.set(is_good, "retry delay", Short(delay).to_string(), "it lies between 1 and 60000 ms", |it| {
            it.settings.retry_delay = delay;
        })
    }

    /// How often one who waits asks again when too few nodes can vote, before that is an error; 3 by default. (For a lock that is
    /// held it waits as long as it was told to.)
    pub fn retry_count(mut self, count: u32) -> Self {
        self.settings.retry_count = count;
        self
    }

    /// What clocks may drift by in a TTL, as a part of it, beside 2 ms; 0.01 by default.
    pub fn drift_factor(self, factor: f64) -> Self {
        let is_good = (0.0..=0.5).contains(&factor);
        self.set(is_good, "drift", factor.to_string(), "a part of the TTL, 0 to 0.5", |it| {
            it.settings.drift_factor = factor;
        })
    }

    /// How many nodes have to agree; more than half of them by default, and never fewer.
    pub fn quorum(mut self, quorum: usize) -> Self {
        self.quorum = Some(quorum);
        self
    }

    /// The longest TTL that any client of these nodes uses; 60 s by default.
    pub fn max_ttl(self, max_ttl: Duration) -> Self {
        match Ttl::new(max_ttl) {
            Ok(max_ttl) => self.set(true, "", String::new(), "", |it| it.settings.max_ttl = max_ttl),
            Err(error) => Builder { fault: self.fault.clone().or(Some(error)), ..self },
        }
    }

    /// How far the nodes' clocks may be apart; 5 s by default.
    pub fn skew(self, skew: Duration) -> Self {
        let is_good = (10..=3_600_000).contains(&skew.as_millis());
        self.set(is_good, "skew", Short(skew).to_string(), "it lies between 10 ms and an hour", |it| {
            it.settings.skew = skew
        })
    }

    /// For how long a node that started anew or was flushed has no vote: by default, and at least, `max_ttl` and twice the `skew`, and
    /// more than four times the `skew`.
    pub fn quarantine(mut self, quarantine: Duration) -> Self {
        self.quarantine = Some(quarantine);
        self
    }

    /// Lets nodes vote that may have forgotten what they granted. Right for nodes that are new, where nobody can hold anything
    /// yet; otherwise two may hold one lock after a restart.
    pub fn without_quarantine(mut self) -> Self {
        self.quarantine = Some(Duration::ZERO);
        self
    }

    /// The password for all nodes that have none in their address.
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Connects to the nodes, and returns when a quorum of them has answered. The others join later.
    ///
    /// # Errors
    /// [`Error::Quorum`] where fewer than a quorum of them can be reached; [`Error::Invalid`] for settings that make no sense.
    ///
    /// # Cancel safety
    /// Dropped before its end, there is no connection, and nothing stays behind.
    pub async fn open(self) -> Result<Quorum> {
        let (nodes, settings) = self.checked()?;
        Quorum::over(nodes, settings).await
    }

    /// The nodes by name, and the settings as they are meant.
    pub(super) fn checked(self) -> Result<(Vec<(String, Address)>, Settings)> {
        let Builder { nodes, scheme, files, password, quorum, quarantine, mut settings, fault } = self;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let refuse = |given: String, why: String| Err(Error::invalid("nodes of a quorum", given, why));
        if !(NODES_LEAST..=NODES_MOST).contains(&nodes.len()) {
            let why = format!(
                "there are {NODES_LEAST} to {NODES_MOST} of them, better an odd number; for one server write `redis://HOST`"
            );
            return refuse(nodes.len().to_string(), why);
        }
        let mut named: Vec<(String, Address)> = Vec::new();
        for node in &nodes {
            let url = if node.contains("://") { node.clone() } else { format!("{scheme}://{node}") };
            let is_tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
            let its_files = if is_tls { files.clone() } else { tls::Files::default() };
            let has_own = url
                .split_once("://")
                .is_some_and(|(_, place)| place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')));
            let password = password.as_ref().filter(|_| !has_own);
            let address = Address::new(&url, password, &its_files)?;
            let name = address.place();
            if named.iter().any(|(other, _)| *other == name) {
                return refuse(
                    name,
                    "each node is named once: two names of one server would be one vote".to_owned(),
                );
            }
            named.push((name, address));
        }
        let majority = named.len() / 2 + 1;
        settings.quorum = quorum.unwrap_or(majority);
        if !(majority..=named.len()).contains(&settings.quorum) {
            let why = format!("of {} nodes at least {majority} have to agree, and at most all", named.len());
            return Err(Error::invalid("quorum", settings.quorum.to_string(), why));
        }
        let least = settings.least_quarantine();
        settings.quarantine = match quarantine {
            Some(quarantine) if !quarantine.is_zero() && quarantine < least => {
                let why = format!("with this `max_ttl` and `skew` it is at least {}, or `off`", Short(least));
                return Err(Error::invalid("quarantine", Short(quarantine).to_string(), why));
            }
            Some(quarantine) => quarantine,
            None => least,
        };
        Ok((named, settings))
    }
}
