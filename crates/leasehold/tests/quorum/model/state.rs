//! What there is: nodes, clients, the messages that were sent; and what a run is allowed to do.

use std::hash::{Hash, Hasher};

pub(crate) const NODES: usize = 3;
pub(crate) const MAJORITY: u32 = 2;

/// A moment, a length of time, or a fence: all are read off one axis.
pub(crate) type Tick = i16;

/// A moment before all others; also the `last` of a node that knows no fence.
pub(crate) const NEVER: Tick = -1_000;
/// `born` of a node that forgot, and whose quarantine is over.
pub(crate) const SERVED: Tick = -999;
/// `born` of a node that forgot, and that nobody has asked for a vote since.
pub(crate) const UNWRITTEN: Tick = 1_000;

/// A set of nodes, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes(pub(crate) u8);

impl Nodes {
    pub(crate) fn has(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    pub(crate) fn add(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn is_majority(self) -> bool {
        self.0.count_ones() >= MAJORITY
    }
}

/// The key of the name on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// The client whose token it is.
    pub(crate) token: usize,
    pub(crate) fence: Tick,
    /// By this node's clock.
    pub(crate) until: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) lock: Option<Lock>,
    /// The highest fence accepted for the name; [`NEVER`] where there is none.
    pub(crate) last: Tick,
    /// When the key with `last` goes, by this node's clock.
    pub(crate) last_until: Tick,
    /// When it began to count its quarantine, by its own clock; [`NEVER`] where it forgot nothing.
    pub(crate) born: Tick,
    /// When it forgot, by the true time, while the quarantine lasts: what a holder with a good clock knows. Kept only where
    /// clocks leap; elsewhere `born` is the same.
    pub(crate) forgot: Tick,
    /// How far its clock is from the true time.
    pub(crate) offset: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Idle,
    Asking,
    /// It was granted. Whether it is valid still, `until` says.
    Held,
    /// It has sent its release: its token is never used again.
    Over,
}

/// One attempt with one token. What it sent stays in the network for ever: `asked`, `renews`, `repairs` and the phase
/// [`Phase::Over`] (for releases) are the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// The fence asked for in each round; [`NEVER`] for a round not sent.
    pub(crate) asked: [Tick; 2],
    /// When the latest round was sent.
    pub(crate) sent: Tick,
    /// Nodes that accepted the latest round's fence.
    pub(crate) yes: Nodes,
    pub(crate) granted: bool,
    /// The lease is valid before this.
    pub(crate) until: Tick,
    /// Whether a renewal was ever sent: it may arrive at any time after.
    pub(crate) renews: bool,
    /// When the latest round of renewal was sent; [`NEVER`] where none is open.
    pub(crate) renewal: Tick,
    pub(crate) renewed: Nodes,
    /// Nodes that answered this round of renewal with "nothing here, and no higher fence".
    pub(crate) empty: Nodes,
    /// Nodes to which a repair was sent.
    pub(crate) repairs: Nodes,
    /// For the properties: the highest fence of a completed grant when the latest round was sent.
    pub(crate) floor: Tick,
    /// For the properties: a higher fence had been granted when this round of renewal was sent.
    pub(crate) overtaken: bool,
    /// For the properties: nodes that executed the release.
    pub(crate) left: Nodes,
}

impl Client {
    /// The latest fence it asked for.
    pub(crate) fn fence(&self) -> Tick {
        if self.asked[1] == NEVER { self.asked[0] } else { self.asked[1] }
    }
}

/// What must never be, once it has been: it stays, so that it is found whatever comes after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) same_fence: bool,
    pub(crate) fence_fell: bool,
    pub(crate) renewed_past: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) now: Tick,
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: Vec<Client>,
    /// Faults still to come.
    pub(crate) forgets: u8,
    pub(crate) leaps: u8,
    pub(crate) broken: Broken,
    /// For symmetry: clients with equal TTLs are one another's equals.
    pub(crate) ttls: &'static [Tick],
}

/// What can be left out. The last three are not in the protocol as it was first written, which broke as it breaks without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// B1: the quarantine is counted by the store's longest TTL, not by the claimant's.
    QuarantineByMaxTtl,
    /// B2: a node accepts no fence further than S from its clock.
    Window,
    /// B2: a node accepts no fence that is not above its last.
    Rising,
    /// B3: yeses are counted per fence.
    CountedPerFence,
    /// B3: a node says yes again to the same token and fence only.
    TokenAndFence,
    /// B5: a release raises `last` past the fence it gives up.
    ReleaseRaises,
    /// B6: a node that forgot does not vote for its quarantine.
    Quarantine,
    /// B6: a holder times the quarantine of a node by its own clock, too.
    HolderTimes,
    /// B7: a repaired node is not counted before its quarantine is over.
    RepairedCountsLater,
    /// B7: a repair writes only where nothing is, and no higher fence has been.
    RepairOnlyEmpty,
    /// The client's own: nothing is sent or counted past the lease's deadline, by a clock that is right.
    Deadline,
    /// No release raises `last` past what the node could accept by its clock.
    RaiseInWindow,
    /// `born` is written only by a claim whose fence the node's clock agrees with.
    BornInWindow,
    /// The fence of a name survives any leap of the clock: its key does not expire, or a floor of the whole node stands in
    /// for it that does not.
    FenceStays,
}

/// What one run explores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// One client for each.
    pub(crate) ttls: &'static [Tick],
    pub(crate) s: Tick,
    pub(crate) quarantine: Tick,
    /// The end of time.
    pub(crate) ticks: Tick,
    /// How far the nodes' clocks are from the true time at first.
    pub(crate) skews: [Tick; NODES],
    /// How far from the true time a client may propose its fence.
    pub(crate) leads: &'static [Tick],
    pub(crate) rounds: usize,
    pub(crate) renewals: bool,
    pub(crate) repairs: bool,
    pub(crate) releases: bool,
    /// How many restarts or flushes there may be.
    pub(crate) forgets: u8,
    /// Keys of locks go at any time, early or late, instead of on time.
    pub(crate) any_expiry: bool,
    /// How many leaps of a node's clock there may be, and where to.
    pub(crate) leaps: u8,
    pub(crate) offsets: &'static [Tick],
    /// How long a node remembers a fence; [`NEVER`] where it forgets none. It forgets only while most clocks confirm its own.
    pub(crate) remembered: Tick,
    pub(crate) without: &'static [Rule],
}

impl Setup {
    pub(crate) fn max_ttl(&self) -> Tick {
        self.ttls.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        !self.without.contains(&rule)
    }

    pub(crate) fn first_state(&self) -> State {
        let node =
            |offset| Node { lock: None, last: NEVER, last_until: NEVER, born: NEVER, forgot: NEVER, offset };
        let client = Client {
            phase: Phase::Idle,
            asked: [NEVER; 2],
            sent: NEVER,
            yes: Nodes(0),
            granted: false,
            until: NEVER,
            renews: false,
            renewal: NEVER,
            renewed: Nodes(0),
            empty: Nodes(0),
            repairs: Nodes(0),
            floor: NEVER,
            overtaken: false,
            left: Nodes(0),
        };
        State {
            now: 0,
            nodes: self.skews.map(node),
            clients: vec![client; self.ttls.len()],
            forgets: self.forgets,
            leaps: self.leaps,
            broken: Broken::default(),
            ttls: self.ttls,
        }
    }
}

/// What is kept by node, for one node; and what is not, for one client.
type Column = [i16; 12];
type Row = [i16; 8];

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// States that differ only in which node is which, or in which of the clients with equal TTLs, are one: they have one hash,
/// which is all the checker remembers of a state. Everything that is kept by node is a column; for each order of
/// the clients the columns are sorted, and the least of the results stands for all.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let count = self.clients.len();
        let mut least: Option<([Column; NODES], [Row; 3])> = None;
        for order in ORDERS {
            if (count..3).any(|place| order[place] != place)
                || (0..count).any(|place| self.ttls[order[place]] != self.ttls[place])
            {
                continue;
            }
            let mut columns = [Column::default(); NODES];
            for (node, column) in columns.iter_mut().enumerate() {
                *column = self.column(node, &order[..count]);
            }
            columns.sort_unstable();
            let mut rows = [Row::default(); 3];
            for (row, &client) in rows.iter_mut().zip(&order[..count]) {
                *row = self.clients[client].row();
            }
            let all = (columns, rows);
            if least.is_none_or(|least| all < least) {
                least = Some(all);
            }
        }
        let Broken { same_fence, fence_fell, renewed_past } = self.broken;
        (self.now, self.forgets, self.leaps, same_fence, fence_fell, renewed_past, least).hash(hasher);
    }
}

impl State {
    /// All that is kept by node, for this node.
    fn column(&self, node: usize, order: &[usize]) -> Column {
        let Node { lock, last, last_until, born, forgot, offset } = self.nodes[node];
        let mut column = Column::default();
        if let Some(Lock { token, fence, until }) = lock {
            let place = order.iter().position(|&client| client == token).unwrap_or(0);
            column[..3].copy_from_slice(&[place as i16 + 1, fence, until]);
        }
        column[3..8].copy_from_slice(&[last, last_until, born, forgot, offset]);
        for (place, &client) in order.iter().enumerate() {
            let Client { yes, renewed, empty, repairs, left, .. } = self.clients[client];
            for (bit, nodes) in [yes, renewed, empty, repairs, left].into_iter().enumerate() {
                column[8 + place] |= i16::from(nodes.has(node)) << bit;
            }
        }
        column
    }
}

impl Client {
    /// All that is not kept by node.
    fn row(&self) -> Row {
        let Client { phase, asked, sent, granted, until, renews, renewal, floor, overtaken, .. } = *self;
        let flags = i16::from(granted) | i16::from(renews) << 1 | i16::from(overtaken) << 2;
        [phase as i16, asked[0], asked[1], sent, until, renewal, floor, flags]
    }
}

#[test]
fn states_that_differ_in_names_only_are_one() {
    use std::hash::DefaultHasher;

    use stateright::Model;

    use super::steps::Step;

    fn after(setup: &Setup, client: usize, nodes: [usize; 2]) -> u64 {
        let mut state = setup.first_state();
        let asked = Step::Ask { client, fence: 0 };
        let [first, second] = nodes.map(|node| Step::Acquire { client, round: 0, node, heard: true });
        for step in [asked, first, Step::Tick, second] {
            state = setup.next_state(&state, step).unwrap();
        }
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    }
    let equals = Setup { ttls: &[2, 2], s: 3, ..super::BARE };
    assert_eq!(after(&equals, 0, [0, 1]), after(&equals, 1, [2, 0]));
    let unequal = Setup { ttls: &[2, 1], ..equals };
    assert_eq!(after(&unequal, 0, [0, 1]), after(&unequal, 0, [1, 2]));
    assert_ne!(after(&unequal, 0, [0, 1]), after(&unequal, 1, [0, 1]));
    let skewed = Setup { skews: [0, 0, 1], ..equals };
    assert_eq!(after(&skewed, 0, [0, 2]), after(&skewed, 1, [1, 2]));
    assert_ne!(after(&skewed, 0, [0, 2]), after(&skewed, 0, [2, 0]));
}
