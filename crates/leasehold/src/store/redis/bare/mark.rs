//! What stands in the key of a lock that is held alone: as the scripts write it, so that both understand each other.

use super::super::reply::fence_read;
use crate::claim::Ticket;
use crate::fence::Fence;

/// `token#fence`, then `/n` for a block of n fences, `!` if it outlives its client; and by lines the main keys, if it was
/// claimed with several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) token: String,
    pub(super) fence: Fence,
    pub(super) fences: u16,
    pub(super) detached: bool,
    /// Whether other names belong to it.
    pub(super) has_others: bool,
}

impl Mark {
    /// None for a value that is not ours.
    pub(super) fn read(value: &str) -> Option<Self> {
        let (head, others) = value.split_once('\n').unwrap_or((value, ""));
        let (token, rest) = head.rsplit_once('#')?;
        let (rest, detached) = rest.strip_suffix('!').map_or((rest, false), |rest| (rest, true));
        let (fence, fences) = rest.split_once('/').unwrap_or((rest, "1"));
        let is_number = |text: &str, radix| text.chars().all(|c| c.is_digit(radix));
        if !is_number(fence, 16) || !is_number(fences, 10) {
            return None;
        }
        let fences = fences.parse().unwrap_or(1).max(1);
        let (token, has_others) = (token.to_owned(), !others.is_empty());
        Some(Mark { token, fence: fence_read(fence)?, fences, detached, has_others })
    }

    /// Of one name.
    pub(super) fn text(&self) -> String {
        let Mark { token, fence, fences, detached, .. } = self;
        let block = if *fences > 1 { format!("/{fences}") } else { String::new() };
        format!("{token}#{:x}{block}{}", fence.get(), if *detached { "!" } else { "" })
    }

    /// What most who show this ticket hold: one fence, and no more than their client's life.
    pub(super) fn of(ticket: &Ticket) -> Option<Self> {
        let token = ticket.token.expose().to_owned();
        Some(Mark { token, fence: ticket.fence?, fences: 1, detached: false, has_others: false })
    }

    /// Whether it is this ticket's, by the token alone.
    pub(super) fn is_of(&self, ticket: &Ticket) -> bool {
        self.token == ticket.token.expose() && !self.has_others
    }

    /// Whether a fence is one of the block.
    pub(super) fn has(&self, fence: Fence) -> bool {
        (self.fence.get()..self.fence.get() + u64::from(self.fences)).contains(&fence.get())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (fences, detached, text) in [
            (1, false, "t@a#b#ff"),
            (16, false, "t@a#b#ff/16"),
            (1, true, "t@a#b#ff!"),
            (2, true, "t@a#b#ff/2!"),
        ] {
            let token = "t@a#b".to_owned();
            let mark = Mark { token, fence: Fence::new(255).unwrap(), fences, detached, has_others: false };
            assert_eq!(mark.text(), text);
            assert_eq!(Mark::read(text), Some(mark));
        }
        assert!(Mark::read("t#1\nlock:a\nlock:b").unwrap().has_others);
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        for text in
            ["", "x", "x#", "x#g", "x#+1", "x#1/x", "x#1/-2", "x#1!!", "x#1 ", "x#0", "#!", "x#1\u{fffd}"]
        {
            assert_eq!(Mark::read(text), None, "{text}");
        }
    }
}
