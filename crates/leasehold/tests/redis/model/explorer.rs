//! The search: every state within the bounds of a run, breadth first.
//!
//! The quorum's model uses `stateright`. This one has states in the millions, and `stateright` keeps with each state that
//! waits for its turn the whole path to it. Here the path is found again by the fingerprints.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use super::properties::{PROPERTIES, REACHED};
use super::state::{Setup, State};
use super::steps::Step;

/// The result of a run.
pub(crate) struct Found {
    /// The run saw every state within its bounds, and none violates a property.
    pub(crate) whole: bool,
    pub(crate) states: usize,
    /// The first property that does not hold, with the steps that show it.
    pub(crate) violated: Option<(&'static str, Vec<Step>, State)>,
    /// States that the run had to reach and did not.
    pub(crate) unseen: Vec<&'static str>,
}

/// A fingerprint is a hash already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

/// The fingerprint of each state, with the one of the state before it.
type Parents = HashMap<u64, u64, BuildHasherDefault<Identity>>;

/// Explores the setup until one of these properties is violated, or so many states were seen.
pub(crate) fn explore(name: &str, setup: &Setup, properties: &[&str], at_most: usize) -> Found {
    let start = Instant::now();
    let properties: Vec<_> = PROPERTIES.iter().filter(|(name, _)| properties.contains(name)).collect();
    let mut unseen = REACHED.to_vec();
    let first = setup.first_state();
    let mut parents = Parents::default();
    parents.insert(first.fingerprint(setup), 0);
    let (mut level, mut next) = (vec![first], Vec::new());
    let (mut depth, mut steps) = (0, Vec::new());
    let mut violated = None;
    let mut whole = true;
    'search: while !level.is_empty() {
        depth += 1;
        for state in level.drain(..) {
            let parent = state.fingerprint(setup);
            steps.clear();
            setup.steps(&state, &mut steps);
            for &step in &steps {
                let state = setup.after(&state, step);
                let fingerprint = state.fingerprint(setup);
                if parents.contains_key(&fingerprint) {
                    continue;
                }
                parents.insert(fingerprint, parent);
                unseen.retain(|(_, reached)| !reached(setup, &state));
                if let Some((name, _)) = properties.iter().find(|(_, holds)| !holds(setup, &state)) {
                    violated = Some((*name, path(setup, &parents, fingerprint), state));
                    break 'search;
                }
                next.push(state);
            }
            if parents.len() >= at_most {
                whole = false;
                break 'search;
            }
        }
        std::mem::swap(&mut level, &mut next);
    }
    let seconds = start.elapsed().as_secs_f64();
    let end = match &violated {
        Some((name, steps, _)) => format!(", NOT \"{name}\", in {} steps", steps.len()),
        None if whole => String::new(),
        None => ", NOT ALL: the bound of the run".to_string(),
    };
    println!("{name}: {} states, depth {depth}, {seconds:.1} s{end}", parents.len());
    let whole = whole && violated.is_none();
    Found {
        whole,
        states: parents.len(),
        violated,
        unseen: unseen.into_iter().map(|(name, _)| name).collect(),
    }
}

/// The steps from the first state to the one with this fingerprint.
fn path(setup: &Setup, parents: &Parents, last: u64) -> Vec<Step> {
    let mut chain = vec![last];
    while let Some(&parent) = parents.get(chain.last().unwrap()).filter(|parent| **parent != 0) {
        chain.push(parent);
    }
    let mut state = setup.first_state();
    let mut path = Vec::new();
    for &fingerprint in chain.iter().rev().skip(1) {
        let mut steps = Vec::new();
        setup.steps(&state, &mut steps);
        let step =
            steps.into_iter().find(|&step| setup.after(&state, step).fingerprint(setup) == fingerprint);
        let step = step.expect("a step that leads on along the path");
        state = setup.after(&state, step);
        path.push(step);
    }
    path
}
