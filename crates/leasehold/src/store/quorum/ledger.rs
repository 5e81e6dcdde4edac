//! What this client has asked for under each token: the highest fence it proposed, which a release has to bar (B5), and since when
//! its votes are counted (B8). A ticket alone does not say either.

use std::collections::HashMap;

use crate::clock::Deadline;
use crate::sync::{Mutex, lock};
use crate::token::Token;

/// Beyond so many, those whose time is over are looked for.
const SWEEP_AT: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    of: HashMap<Token, Page>,
    sweep_at: usize,
}

/// Invariants:
/// - `highest` only rises: whatever was proposed under the token is at most that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    /// The highest fence proposed.
    pub(super) highest: u64,
    /// Since when its present votes are counted: a node whose clock leapt after that is not to be relied on.
    pub(super) counted: Deadline,
    /// Whether it was held by no more nodes than it has to be, when last looked.
    pub(super) degraded: bool,
    /// Whether it stood in line anywhere.
    pub(super) waited: bool,
    /// Whether it was put back on a node: that may be under way still.
    pub(super) put_back: bool,
    /// Whether a release was sent: from then on nothing is put back for it.
    pub(super) released: bool,
    /// When nothing of it can be left.
    until: Deadline,
}

impl Ledger {
    /// Takes note of a proposal, before it is sent: `waits` if it is to stand in line where the name is taken.
    pub(super) fn proposed(&self, token: &Token, fence: u64, waits: bool, now: Deadline, until: Deadline) {
        let mut pages = lock(&self.pages);
        if pages.of.len() >= pages.sweep_at.max(SWEEP_AT) {
            pages.of.retain(|_, page| page.until > now);
            pages.sweep_at = pages.of.len() * 2;
        }
        let (degraded, put_back, released) = (false, false, false);
        let new = Page { highest: fence, counted: now, degraded, waited: waits, put_back, released, until };
        let page = pages.of.entry(token.clone()).or_insert(new);
        page.highest = page.highest.max(fence);
        page.counted = now;
        page.waited |= waits;
        page.until = page.until.max(until);
    }

    pub(super) fn of(&self, token: &Token) -> Option<Page> {
        lock(&self.pages).of.get(token).copied()
    }

    /// It was renewed by a request sent then.
    pub(super) fn counted(&self, token: &Token, sent: Deadline, until: Deadline) {
        if let Some(page) = lock(&self.pages).of.get_mut(token) {
            page.counted = page.counted.max(sent);
            page.until = page.until.max(until);
        }
    }

    /// Sets whether it is degraded; says whether that is news.
    pub(super) fn set_degraded(&self, token: &Token, degraded: bool) -> bool {
        match lock(&self.pages).of.get_mut(token) {
            Some(page) if !page.released => std::mem::replace(&mut page.degraded, degraded) != degraded,
            _ => false,
        }
    }

    /// It is about to be put back on a node; false where it is not to be, since it was released or this is not its last fence.
    pub(super) fn put_back(&self, token: &Token, fence: u64) -> bool {
        match lock(&self.pages).of.get_mut(token) {
            Some(page) if !page.released && page.highest == fence => {
                page.put_back = true;
                true
            }
            _ => false,
        }
    }

    /// A release is about to be sent; says what it has to bar.
    pub(super) fn release(&self, token: &Token) -> Option<Page> {
        let mut pages = lock(&self.pages);
        let page = pages.of.get_mut(token)?;
        page.released = true;
        Some(*page)
    }

    /// Every node has answered a release.
    pub(super) fn forget(&self, token: &Token) {
        lock(&self.pages).of.remove(token);
    }
}
