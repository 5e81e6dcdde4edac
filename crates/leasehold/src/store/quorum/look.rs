//! What is only looked at, and what an operator does: who holds a name, by a majority; eviction; adoption.

use std::collections::BTreeSet;

use futures_util::stream::FuturesUnordered;
use redis::{Value, cmd};

use super::node::{Answer, Heard, Node, Request};
use super::{Fleet, median, round, script};
use crate::claim::{Adopted, Evicted, Holder, Names, Nodes, Status};
use crate::error::{Error, NodeSaid, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::Notice;
use crate::store::redis::reply::{date, fence_text, holders, number, text, waiters};
use crate::store::redis::{name_in, patterns};
use crate::sync::Arc;
use crate::ttl::Ttl;

/// How many names are looked at as one.
const NAMES_MAX: usize = 256;

/// How many keys are asked for at a time.
const SCANNED: usize = 500;

/// What a node has of a name.
struct View<'a> {
    value: &'a Value,
    left_ms: i64,
    waiting: &'a [Value],
    /// When each of them came (µs).
    arrivals: &'a [Value],
    /// The node's clock when it answered.
    node_us: u64,
}

impl Fleet {
    /// What enough nodes answer, and why the others did not. An error where too few do.
    async fn ask_most(&self, what: &'static str, request: Request) -> Result<Vec<Heard>> {
        let (_, asked) = round::ask(self.everybody(), request, self.clock.now());
        let answers = round::collect(asked.into_stream(), self.nodes.len(), self.quorum(), &self.clock).await;
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        if answered >= self.quorum() {
            return Ok(answers.into_iter().flatten().collect());
        }
        let said = |answer: Answer| answer.err().unwrap_or(NodeSaid::Agreed);
        Err(self.short(what, answered, answers.into_iter().map(said).collect()))
    }

    /// How things stand with each of these names.
    pub(super) async fn look(&self, names: &[Name]) -> Result<Vec<Option<Status>>> {
        let mut found = Vec::new();
        for part in names.chunks(NAMES_MAX) {
            let keys = part.iter().map(|name| self.key(name)).collect();
            let request = self.request(&script::INSPECT, keys, Vec::new());
            let answers = self.ask_most("answered", request).await?;
            for (at, name) in part.iter().enumerate() {
                let views: Vec<View<'_>> =
                    answers.iter().filter_map(|heard| view(heard.values.get(at)?, heard.node_us)).collect();
                found.push(self.status(name, &views));
            }
        }
        Ok(found)
    }

    /// Whoever has a majority, or may have one with those that did not answer.
    fn status(&self, name: &Name, views: &[View<'_>]) -> Option<Status> {
        let silent = self.nodes.len() - views.len();
        let mut seen: Vec<&Value> = Vec::new();
        let (mut holding, mut waiting): (Vec<Holder>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut arrivals = Vec::new();
        for view in views.iter().filter(|view| !text(view.value).is_empty()) {
            if seen.contains(&view.value) {
                continue;
            }
            seen.push(view.value);
            let mut left: Vec<i64> =
                views.iter().filter(|other| other.value == view.value).map(|other| other.left_ms).collect();
            if left.len() + silent < self.quorum() {
                continue;
            }
            // Without an end, or the end of what is a majority's.
            left.sort_unstable_by_key(|left| std::cmp::Reverse(if *left < 0 { i64::MAX } else { *left }));
            let ends = left[left.len().min(self.quorum()) - 1];
            let nodes = Nodes { held: left.len(), all: self.nodes.len(), needed: self.quorum() };
            let shown = holders(&[view.value.clone(), Value::Int(ends)]);
            holding.extend(shown.into_iter().map(|holder| Holder { nodes: Some(nodes), ..holder }));
        }
        for (token, arrival) in views.iter().flat_map(|view| view.waiting.iter().zip(view.arrivals)) {
            let count = views.iter().filter(|view| view.waiting.contains(token)).count();
            if count + silent >= self.quorum() && !waiting.contains(token) {
                waiting.extend([token.clone(), Value::SimpleString("x".to_owned())]);
                arrivals.push(number(arrival));
            }
        }
        let mut waiters = waiters(&waiting);
        let now_us = median(views.iter().map(|view| view.node_us).collect()).unwrap_or(0);
        date(&mut holding, &mut waiters, now_us, arrivals);
        let is_used = !holding.is_empty() || !waiters.is_empty();
        is_used.then(|| Status { name: name.clone(), holders: holding, waiters })
    }

    pub(super) async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let mut names: BTreeSet<Name> = BTreeSet::new();
        let scans: FuturesUnordered<_> = self
            .everybody()
            .map(|(place, node)| async move { (place, self.scan(node, prefix).await) })
            .collect();
        let scanned = round::collect(scans, self.nodes.len(), self.quorum(), &self.clock).await;
        let answered = scanned.iter().filter(|answer| answer.is_ok()).count();
        if answered < self.quorum() {
            let said = |answer: Result<Vec<Name>, NodeSaid>| answer.err().unwrap_or(NodeSaid::Agreed);
            return Err(self.short("answered", answered, scanned.into_iter().map(said).collect()));
        }
        scanned.into_iter().flatten().for_each(|found| names.extend(found));
        let names: Vec<Name> = names.into_iter().collect();
        let mut found = Vec::new();
        for part in names.chunks(NAMES_MAX) {
            found.extend(self.look(part).await?.into_iter().flatten());
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    /// The names that a node has a key of.
    async fn scan(&self, node: &Node, prefix: &str) -> Result<Vec<Name>, NodeSaid> {
        let mut names = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            let [pattern, _] = patterns(&self.settings.prefix, prefix);
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
            let Value::Array(reply) = node.command(&scan).await? else {
                return Err(NodeSaid::NoAnswer { why: "its answer makes no sense".to_owned() });
            };
            if let Some(Value::Array(keys)) = reply.get(1) {
                names.extend(keys.iter().filter_map(|key| name_in(&self.settings.prefix, &text(key))));
            }
            cursor = reply.first().map(text).unwrap_or_default();
            if cursor == "0" || cursor.is_empty() {
                return Ok(names);
            }
        }
    }

    /// Takes a name from its holder, or from the one with this fence. Each node tells all clients of the prefix.
    pub(super) async fn evict(&self, name: &Name, only: Option<Fence>) -> Result<Evicted> {
        let args = vec![format!("{:x}", self.next_fence(0)), fence_text(only), self.notice_channel.clone()];
        let request = self.request(&script::EVICT, vec![self.key(name)], args);
        let answers = self.ask_most("evicted it", request).await?;
        let is_foreign = |heard: &&Heard| heard.values.get(1).is_some_and(|word| text(word) == "foreign");
        if answers.iter().filter(is_foreign).count() >= self.quorum() {
            return Err(self.no_lock(name));
        }
        let found = answers.iter().filter_map(|heard| match heard.values.as_slice() {
            [value, Value::Int(left), ..] if !text(value).is_empty() => Some((value, *left)),
            _ => None,
        });
        let found: Vec<(&Value, i64)> = found.collect();
        let count = |value: &Value| found.iter().filter(|(other, _)| *other == value).count();
        let most = found.iter().map(|(value, _)| *value).max_by_key(|value| count(value));
        // As in `status`: what only a minority has is the rest of a release or of a failed claim. The scripts removed it.
        let silent = self.nodes.len() - answers.len();
        let Some(most) = most.filter(|value| count(value) + silent >= self.quorum()) else {
            return Ok(Evicted { holders: Vec::new() });
        };
        // The longest that any node would have kept it: its holder believes in it for no longer.
        let left = found.iter().filter(|(value, _)| *value == most).map(|(_, left)| *left).max();
        Ok(Evicted { holders: holders(&[most.clone(), Value::Int(left.unwrap_or(0))]) })
    }

    /// Tells all clients that the work under an evicted lease has ended. One node that passes it on is enough.
    pub(super) async fn tell_ended(&self, names: &Names, fence: Fence) -> Result<()> {
        for name in names {
            let text = Notice::Ended { name: name.clone(), fence }.to_text(&self.settings.prefix);
            let publish = cmd("PUBLISH").arg(&self.notice_channel).arg(text).take();
            let told: FuturesUnordered<_> = self
                .everybody()
                .map(|(place, node)| {
                    let publish = &publish;
                    async move { (place, node.command(publish).await) }
                })
                .collect();
            round::collect(told, self.nodes.len(), self.quorum(), &self.clock).await;
        }
        Ok(())
    }

    pub(super) async fn adopt(self: &Arc<Self>, name: &Name, ttl: Ttl) -> Result<Adopted> {
        let args = vec![ttl.as_ms().to_string()];
        let request = self.request(&script::ADOPT, vec![self.key(name)], args);
        let answers = self.ask_most("adopted it", request).await?;
        let adopted = |heard: &Heard| {
            use crate::store::redis::reply::Reply;
            match heard.values.first().map(text).as_deref() {
                Some("foreign") | None => None,
                Some(_) => {
                    Reply::new(Value::Array(heard.values.clone())).and_then(|reply| reply.adopted()).ok()
                }
            }
        };
        let mut outcomes: Vec<Adopted> = answers.iter().filter_map(adopted).collect();
        // One that was given an end anywhere was adopted; else whoever lasts longest is what is in the way.
        outcomes.sort_by_key(|outcome| match outcome {
            Adopted::Adopted { .. } => (0, std::time::Duration::ZERO),
            Adopted::Ends { remaining, .. } => (1, std::time::Duration::MAX - *remaining),
            Adopted::NotHeld => (2, std::time::Duration::ZERO),
        });
        outcomes.into_iter().next().ok_or_else(|| self.no_lock(name))
    }

    fn no_lock(&self, name: &Name) -> Error {
        let why = format!(
            "the key `{}` is no lock; use another name or prefix, or remove it",
            self.key(name).escape_debug()
        );
        Error::Refused { store: "redlock", why }
    }
}

fn view(value: &Value, node_us: u64) -> Option<View<'_>> {
    let Value::Array(parts) = value else { return None };
    let [value, Value::Int(left_ms), Value::Array(waiting), _, Value::Array(arrivals), ..] = parts.as_slice()
    else {
        return None;
    };
    Some(View { value, left_ms: *left_ms, waiting, arrivals, node_us })
}
