//! The state: one name on one server, its clients, and the messages under way; and the bounds of a run.

use std::fmt;

use super::list::List;
use super::steps::Step;

/// The most clients of a run.
pub(crate) const CLIENTS: usize = 4;

/// A length of time in ticks, a fence or an order of arrival. Times count down, so that states with equal
/// futures are equal; fences and arrivals are renumbered from 1 after every step.
pub(crate) type Small = u8;

/// The length of time that never ends: a key without an expiry.
pub(crate) const ENDLESS: Small = 200;

/// The token of one attempt of one client.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) client: u8,
    /// The attempt that uses it; always 1 where tokens are re-used.
    pub(crate) number: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Exclusive,
    Reader,
    Permits { take: u8, barging: bool },
}

impl Share {
    pub(crate) fn barges(self) -> bool {
        matches!(self, Share::Permits { barging: true, .. })
    }

    /// The part of `used` that a holder has.
    pub(crate) fn weight(self) -> u8 {
        if let Share::Permits { take, .. } = self { take } else { 1 }
    }

    /// The first field of `#` in the hash.
    pub(crate) fn is_permits(self) -> bool {
        matches!(self, Share::Permits { .. })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) token: Token,
    pub(crate) fence: Small,
    /// Ticks until it ends.
    pub(crate) left: Small,
}

/// The main key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Key {
    Free,
    /// A string.
    Exclusive(Holder),
    /// A hash. A holder that has ended stays in it until a script reads them all.
    Shares {
        holders: List<Holder, CLIENTS>,
        permits: bool,
        /// The sum of the holders' weights, as the scripts keep it.
        used: u8,
        /// Ticks until a script reads all holders.
        soonest: Small,
        /// Ticks until the key expires.
        left: Small,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) key: Key,
    pub(crate) queue: List<Token, 12>,
    /// Ticks until the queue expires.
    pub(crate) queue_left: Small,
    /// Waiters that were absent at their turn.
    pub(crate) absent: List<Token, 12>,
    pub(crate) absent_left: Small,
    /// The highest fence given.
    pub(crate) last: Small,
    /// The clients whose channel has a subscriber, by the server.
    pub(crate) subscribed: [bool; CLIENTS],
    /// Ticks until the `here` key of a client that polls expires.
    pub(crate) here: [Small; CLIENTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Waiting,
    Held,
    /// The attempt is over, and its release is not answered for good.
    Releasing,
    /// All attempts are over.
    Done,
    /// Crashed.
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// Counts from 1.
    pub(crate) attempt: u8,
    /// Ticks since the token's first ask, while it waits.
    pub(crate) first_ask: Small,
    /// Ticks since the ask from which a push counts, by a rule that was tried; [`ENDLESS`] for none.
    pub(crate) other_ask: Small,
    pub(crate) fence: Small,
    /// Ticks for which the client believes in its lease.
    pub(crate) left: Small,
    pub(crate) asks: u8,
    /// It sent more than one ask.
    pub(crate) repeated: bool,
    pub(crate) unanswered: u8,
    /// Ticks until the server refuses the latest ask.
    pub(crate) not_after: Small,
    pub(crate) releases: u8,
    pub(crate) renewals: u8,
    /// An ask, and a release, went out in this tick.
    pub(crate) asked: bool,
    pub(crate) released: bool,
    /// Its lease was force-released: the client hears of that at its next renewal.
    pub(crate) forced: bool,
    /// For the properties: the order of arrival in the queue; 0 for none.
    pub(crate) arrival: Small,
    /// For the properties: the waiter was absent at its turn.
    pub(crate) was_absent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    #[default]
    Ask,
    Release,
    Renew,
    Granted,
    Queued,
    /// The answer to an ask past its `not_after`.
    Late,
    Released,
    Renewed,
    NotHeld,
    Push,
}

impl Kind {
    pub(crate) fn is_request(self) -> bool {
        matches!(self, Kind::Ask | Kind::Release | Kind::Renew)
    }
}

/// A message under way. It arrives at any time, in any order, once or not at all.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) token: Token,
    /// The attempt that sent it: a client tells its answers apart also where tokens are re-used.
    pub(crate) attempt: u8,
    pub(crate) fence: Small,
    /// Ticks since the request was sent, by its client's clock.
    pub(crate) age: Small,
    pub(crate) not_after: Small,
    /// An ask: op `a`, not `w`.
    pub(crate) again: bool,
    /// A release: the token may have several entries.
    pub(crate) thorough: bool,
    /// A release and its answer: no ask of the token can be executed any more.
    pub(crate) last: bool,
    /// A release that expects no answer.
    pub(crate) silent: bool,
}

/// Set once a transition breaks a property; it stays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Broken {
    pub(crate) fence_fell: bool,
    pub(crate) overtaken: bool,
    pub(crate) left_fitting: bool,
    pub(crate) short: bool,
    pub(crate) confirmed: bool,
    pub(crate) place_lost: bool,
    pub(crate) jumped: bool,
    pub(crate) removed: bool,
}

/// The faults still to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Faults {
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    pub(crate) disconnects: u8,
    pub(crate) forced: u8,
    /// The server has just become a replica, and refuses the writes of a request.
    pub(crate) refusals: u8,
    /// Ticks in which the clock of one client stands still.
    pub(crate) slow_ticks: u8,
}

pub(crate) const NO_FAULTS: Faults =
    Faults { losses: 0, crashes: 0, disconnects: 0, forced: 0, refusals: 0, slow_ticks: 0 };

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) clients: List<Client, CLIENTS>,
    pub(crate) messages: List<Message, 12>,
    pub(crate) faults: Faults,
    pub(crate) broken: Broken,
    /// For the properties: the highest fence of an exclusive lease, and of any lease, that a client began to believe in.
    pub(crate) begun: [Small; 2],
}

/// The event from which a client counts a pushed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushCounts {
    FirstAsk,
    Receipt,
    LatestAsk,
    LatestQueuedAnswer,
}

/// The rules that a run may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// H1: a caller to whom the script handed the key over is answered GRANTED and does not join the queue.
    GrantedIsNotQueued,
    /// H2: a release of a token that sent several asks removes all its entries, on every branch.
    ReleaseRemovesEntries,
    /// H2: `w` looks for its entry in the queue and the absent list, as `a` does.
    WaitLooksForEntry,
    /// H3: a grant to the caller removes its entry in the absent list.
    GrantLeavesAbsentList,
    /// H3, for shares: a grant to a barging caller removes its entry in the queue.
    GrantLeavesQueue,
    /// H4: the absent list has an expiry.
    AbsentListExpires,
    /// A hand-over asks for presence before it writes.
    PresenceBeforeGrant,
    /// The caller counts as present at its turn.
    CallerIsPresent,
    /// A client that polls is present while its `here` key exists.
    HereIsPresence,
    /// PUBLISH comes after the writes.
    PublishLast,
    /// A pushed lease of less than half its TTL is confirmed before it begins.
    ConfirmBelowHalf,
    /// A granted ask counts from its sending, not from the answer's receipt.
    AnswerCountsFromSend,
    /// A renewal compares the whole value.
    RenewComparesFence,
    /// A renewal never creates.
    RenewNeverCreates,
    /// A repeated ask that finds its own grant re-arms it.
    RepeatRearms,
    /// PEXPIRE of the main key never shortens.
    KeyNeverShortens,
    /// PEXPIRE of the queue never shortens.
    QueueNeverShortens,
    /// The server refuses an ask past its `not_after`.
    NotAfter,
    /// A release goes out again once no ask can be executed any more.
    SecondRelease,
    /// A token is used by one attempt only.
    FreshToken,
    /// A release compares the token only.
    ReleaseByToken,
    /// Cancel and release are one script.
    CancelReleasesKey,
    /// A waiter that withdraws from the head of the queue hands its turn on.
    WithdrawalServes,
    /// A client that no longer awaits a grant gives it back.
    GiveBack,
    /// A newcomer joins behind the waiters.
    NewcomerWaits,
    /// A waiter from the absent list returns to the queue before its ask serves the queue.
    ReturnsBeforeServe,
    /// A waiter from the absent list returns to the head.
    AbsentReturnsToHead,
    /// An unknown waiter joins at the tail.
    NewAtTail,
    /// Behind a head that does not fit, only barging waiters are looked at.
    BlockedHeadBlocks,
    /// An absent barging waiter behind the head keeps its place.
    AbsentBehindHeadStays,
    /// `used` rises once for each holder.
    HolderCountsOnce,
    /// `used` falls only for a holder that was there.
    ReleaseOfNothingFreesNothing,
    /// A grant lowers `soonest`.
    GrantLowersSoonest,
    /// The client ends its lease earlier by the drift that it allows.
    DriftAllowance,
}

/// One client of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) share: Share,
    pub(crate) ttl: Small,
    /// It has no channel.
    pub(crate) polls: bool,
}

/// The bounds of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) clients: &'static [Profile],
    /// The first so many clients have asked, one after the other, when the run begins.
    pub(crate) opening: usize,
    /// Of permits.
    pub(crate) limit: u8,
    /// The entries of the queue that one script looks at for barging waiters.
    pub(crate) window: usize,
    /// Attempts of each client; and per attempt:
    pub(crate) attempts: u8,
    pub(crate) asks: u8,
    pub(crate) releases: u8,
    pub(crate) renewals: u8,
    pub(crate) cancels: bool,
    /// An ask is repeated as `w` too, while one is unanswered.
    pub(crate) repeats_wait: bool,
    /// Ticks after which the server refuses an ask.
    pub(crate) late: Small,
    /// The queue and the absent list live so much longer than a TTL after each ask.
    pub(crate) stay: Small,
    /// Ticks for which the `here` key lives.
    pub(crate) here: Small,
    /// A client sends nothing while so many messages are under way.
    pub(crate) in_flight: usize,
    pub(crate) faults: Faults,
    pub(crate) push_counts: PushCounts,
    pub(crate) without: &'static [Rule],
}

impl Setup {
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        !self.without.contains(&rule)
    }

    pub(crate) fn profile(&self, token: Token) -> Profile {
        self.clients[usize::from(token.client)]
    }

    pub(crate) fn share(&self, token: Token) -> Share {
        self.profile(token).share
    }

    /// The ticks for which a client believes in a grant, counted from the sending of its ask.
    pub(crate) fn believed(&self, client: usize) -> Small {
        let drift = if self.keeps(Rule::DriftAllowance) { self.faults.slow_ticks } else { 0 };
        self.clients[client].ttl - drift
    }

    pub(crate) fn token(&self, client: usize, attempt: u8) -> Token {
        let number = if self.keeps(Rule::FreshToken) { attempt } else { 1 };
        Token { client: client as u8, number }
    }

    pub(crate) fn first_state(&self) -> State {
        let mut clients = List::default();
        let mut subscribed = [false; CLIENTS];
        for (client, profile) in self.clients.iter().enumerate() {
            clients.push(Client { attempt: 1, other_ask: ENDLESS, ..Client::default() });
            subscribed[client] = !profile.polls;
        }
        let server = Server {
            key: Key::Free,
            queue: List::default(),
            queue_left: 0,
            absent: List::default(),
            absent_left: 0,
            last: 0,
            subscribed,
            here: [0; CLIENTS],
        };
        let mut state = State {
            server,
            clients,
            messages: List::default(),
            faults: self.faults,
            broken: Broken::default(),
            begun: [0; 2],
        };
        for client in 0..self.opening as u8 {
            state = self.after(&state, Step::Ask { client, again: false });
            while let Some(&message) = state.messages.first() {
                state = self.after(&state, Step::Deliver(message));
            }
        }
        state
    }
}

impl State {
    /// The client whose current attempt has this token; none for a token that is finished.
    pub(crate) fn current(&self, setup: &Setup, token: Token) -> Option<&Client> {
        let client = usize::from(token.client);
        let at = &self.clients[client];
        let is_current = setup.token(client, at.attempt) == token;
        (is_current && matches!(at.phase, Phase::Waiting | Phase::Held | Phase::Releasing)).then_some(at)
    }

    pub(crate) fn is_dead(&self, token: Token) -> bool {
        self.clients[usize::from(token.client)].phase == Phase::Dead
    }
}

impl Key {
    pub(crate) fn holders(&self) -> &[Holder] {
        match self {
            Key::Free => &[],
            Key::Exclusive(holder) => std::slice::from_ref(holder),
            Key::Shares { holders, .. } => holders,
        }
    }

    pub(crate) fn holder(&self, token: Token) -> Option<Holder> {
        self.holders().iter().find(|holder| holder.token == token).copied()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", ["A", "B", "C", "D"][usize::from(self.client)], self.number)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.token)?;
        let mut number = |name: &str, n: u8| if n > 0 { write!(f, " {name} {n}") } else { Ok(()) };
        number("fence", self.fence)?;
        number("age", self.age)?;
        number("not_after", self.not_after)?;
        let flags = [
            (self.again, "again"),
            (self.thorough, "thorough"),
            (self.last, "last"),
            (self.silent, "silent"),
        ];
        flags.into_iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}
