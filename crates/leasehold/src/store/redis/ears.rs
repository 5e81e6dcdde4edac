//! What the server says by itself, and who has to hear it.

use redis::{PushInfo, PushKind};

use super::cells::CHANGED;
use super::left::Left;
use super::reply::{fence_read, text};
use crate::fence::Fence;
use crate::store::waiters::Waiters;
use crate::store::watchers::Watchers;
use crate::store::{Notice, Notices};
use crate::sync::Arc;

/// The channel of [notices](Notice) for all clients of a prefix. No client's own channel is called so: their names are random.
pub(in crate::store) fn notice_channel(prefix: &str) -> String {
    format!("{{{prefix}}}:notices")
}

/// A grant that came unasked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pushed {
    pub(super) fence: Fence,
    pub(super) fences: u16,
}

/// Those who wait for something to be said.
#[derive(Debug, Clone)]
pub(super) struct Ears {
    pub(super) bells: Arc<Waiters<Option<Pushed>>>,
    pub(super) left: Arc<Left>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) notices: Arc<Notices>,
    /// Where the notices of all clients of this prefix are published.
    pub(super) channel: String,
    prefix: String,
}

impl Ears {
    pub(super) fn new(left: Arc<Left>, prefix: &str) -> Self {
        let (bells, watchers, notices) = (Arc::default(), Arc::default(), Arc::default());
        Ears { bells, left, watchers, notices, channel: notice_channel(prefix), prefix: prefix.to_owned() }
    }

    /// Who was admitted, or has to look again: `token`, then `fence` and, of several, `fences`, by lines. Or which value has
    /// changed.
    pub(super) fn hear(&self, push: &PushInfo) {
        let (PushKind::Message, [channel, payload]) = (&push.kind, push.data.as_slice()) else { return };
        let payload = text(payload);
        if text(channel) == self.channel {
            Notice::parse(&payload, &self.prefix).into_iter().for_each(|notice| self.notices.send(notice));
            return;
        }
        if let Some(key) = payload.strip_prefix(CHANGED) {
            return self.watchers.ring(key);
        }
        let mut lines = payload.lines();
        let Some(token) = lines.next() else { return };
        let fence = lines.next().and_then(fence_read);
        let fences = lines.next().map_or(Some(1), |fences| fences.parse().ok());
        let grant = fence.zip(fences).map(|(fence, fences)| Pushed { fence, fences });
        if !self.bells.ring(token, grant) && grant.is_some() {
            self.left.unwanted(token);
        }
    }
}
