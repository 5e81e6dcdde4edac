//! What every kind of lock can be told, and how that becomes a request.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::acquire::{Outcome, Patience, Request, acquire, acquire_detached};
use crate::claim::{Names, Share};
use crate::detached::Detached;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::locks::Client;
use crate::sync::Arc;
use crate::tenancy::Terms;
use crate::token::Owner;
use crate::ttl::Ttl;

/// The inside of every kind: a client, a name or several, and what it was told so far. A kind shows the options that mean something
/// for it, and says which share it asks for.
#[derive(Clone)]
pub(super) struct Setup {
    client: Arc<Client>,
    settings: Result<Settings>,
    /// What the settings come to for the whole of a name, worked out when it is first asked for.
    exclusive: OnceLock<Result<Arc<Request>>>,
}

#[derive(Clone)]
struct Settings {
    names: Names,
    owner: Owner,
    ttl: Ttl,
    patience: Patience,
    renews: bool,
    max_hold: Option<Duration>,
    min_validity: Option<Duration>,
    strict_order: bool,
    is_internal: bool,
}

impl Setup {
    pub(super) fn new(client: Arc<Client>, names: Result<Names>) -> Self {
        let settings = names.map(|names| Settings {
            names,
            owner: client.defaults.owner.clone(),
            ttl: client.defaults.ttl,
            patience: Patience::Forever,
            renews: true,
            max_hold: None,
            min_validity: None,
            strict_order: false,
            is_internal: false,
        });
        Setup { client, settings, exclusive: OnceLock::new() }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Self {
        self.set(|settings| Ttl::new(ttl).map(|ttl| settings.ttl = ttl))
    }

    pub(super) fn wait(self, wait: Duration) -> Self {
        self.set(|settings| {
            settings.patience = Patience::For(wait);
            Ok(())
        })
    }

    pub(super) fn owner(self, label: impl AsRef<str>) -> Self {
        self.set(|settings| Owner::new(label).map(|owner| settings.owner = owner))
    }

    pub(super) fn max_hold(self, max_hold: Duration) -> Self {
        self.set(|settings| {
            if max_hold.is_zero() {
                return Err(Error::invalid("max_hold", "0", "a lease held for no time is no lease"));
            }
            settings.max_hold = Some(max_hold);
            Ok(())
        })
    }

    pub(super) fn no_renewal(self) -> Self {
        self.set(|settings| {
            settings.renews = false;
            Ok(())
        })
    }

    pub(super) fn min_validity(self, min_validity: Duration) -> Self {
        self.set(|settings| {
            settings.min_validity = Some(min_validity);
            Ok(())
        })
    }

    pub(super) fn strict_order(self) -> Self {
        self.set(|settings| {
            settings.strict_order = true;
            Ok(())
        })
    }

    /// For a lock that running work needs: it asks the store by itself, also while the client is drained.
    #[cfg(not(shuttle))]
    pub(super) fn internal(self) -> Self {
        self.set(|settings| {
            (settings.strict_order, settings.is_internal) = (true, true);
            Ok(())
        })
    }

    pub(super) fn patience(&self) -> Patience {
        self.settings.as_ref().map_or(Patience::Never, |settings| settings.patience)
    }

    fn set(mut self, change: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        // The first thing wrong is the one reported.
        if let Ok(settings) = &mut self.settings
            && let Err(error) = change(settings)
        {
            self.settings = Err(error);
        }
        self.exclusive = OnceLock::new();
        self
    }

    /// What is wrong with the settings, or else with the share, is told when it is sent.
    pub(super) fn ask(&self, share: Result<Share>) -> Asking {
        Asking { client: self.client.clone(), request: self.request(share), patience: self.patience() }
    }

    fn request(&self, share: Result<Share>) -> Result<Arc<Request>> {
        let make = |share: Result<Share>| self.settings.clone()?.request(share?, &self.client).map(Arc::new);
        match share {
            Ok(Share::Exclusive) => self.exclusive.get_or_init(|| make(Ok(Share::Exclusive))).clone(),
            share => make(share),
        }
    }

    pub(super) fn fmt_as(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(kind);
        match &self.settings {
            Ok(Settings { names, ttl, .. }) => match names.only() {
                Some(name) => out.field("name", name),
                None => out.field("names", names),
            }
            .field("ttl", ttl),
            Err(error) => out.field("invalid", error),
        };
        out.finish_non_exhaustive()
    }
}

impl Settings {
    fn request(self, share: Share, client: &Client) -> Result<Request> {
        let settings = self;
        let ttl = settings.ttl;
        let min_validity = settings.min_validity.unwrap_or(ttl.as_duration() / 2);
        // A cap shorter than that is the user's own choice, and no reason to give the lock back.
        let min_validity = min_validity.min(settings.max_hold.unwrap_or(Duration::MAX));
        if min_validity > ttl.validity() {
            let why = format!("a lease of {ttl} is never valid for longer than {:?}", ttl.validity());
            return Err(Error::invalid("min_validity", format!("{min_validity:?}"), why));
        }
        let terms = Terms { ttl, renews: settings.renews, max_hold: settings.max_hold };
        // A room has one seat: whoever can hold a name beside others would only wait for them there.
        let alone = settings.names.only().filter(|_| share == Share::Exclusive && !settings.strict_order);
        let room = alone.map(|name| client.hall.key(name.clone(), settings.owner.clone(), terms));
        Ok(Request {
            names: settings.names,
            share,
            terms,
            owner: settings.owner,
            min_validity: min_validity.min(ttl.validity()),
            room,
            is_internal: settings.is_internal,
        })
    }
}

/// A request that has not been sent. It borrows nothing of the kind that made it.
pub(super) struct Asking {
    client: Arc<Client>,
    request: Result<Arc<Request>>,
    patience: Patience,
}

impl Asking {
    /// Waits as long as was said; busy is an error then.
    pub(super) async fn wait(self) -> Result<Lease> {
        let request = self.request?;
        taken(&request, acquire(&self.client, &request, self.patience).await?)
    }

    /// Does not wait; busy is nothing.
    pub(super) async fn attempt(self) -> Result<Option<Lease>> {
        Ok(free(acquire(&self.client, &*self.request?, Patience::Never).await?))
    }

    pub(super) async fn wait_detached(self) -> Result<Detached> {
        let request = self.request.and_then(for_detached)?;
        taken(&request, acquire_detached(&self.client, &request, self.patience).await?)
    }

    pub(super) async fn attempt_detached(self) -> Result<Option<Detached>> {
        let request = self.request.and_then(for_detached)?;
        Ok(free(acquire_detached(&self.client, &request, Patience::Never).await?))
    }
}

fn taken<T>(request: &Request, outcome: Outcome<T>) -> Result<T> {
    match outcome {
        Outcome::Taken(lease) => Ok(lease),
        Outcome::Busy { busy, waited } => Err(Error::Busy { names: request.names.clone(), busy, waited }),
    }
}

fn free<T>(outcome: Outcome<T>) -> Option<T> {
    match outcome {
        Outcome::Taken(lease) => Some(lease),
        Outcome::Busy { .. } => None,
    }
}

fn for_detached(request: Arc<Request>) -> Result<Arc<Request>> {
    Detached::refuse_max_hold(request.terms.max_hold)?;
    Ok(request)
}
