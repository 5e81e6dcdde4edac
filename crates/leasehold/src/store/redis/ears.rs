//! What the server says by itself, and who has to hear it.

use redis::{PushInfo, PushKind};

use super::cells::CHANGED;
use super::left::Left;
use super::reply::{fence_read, text};
use crate::fence::Fence;
use crate::store::bells::Bells;
use crate::store::watchers::Watchers;
use crate::sync::Arc;

/// A grant that came unasked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pushed {
    pub(super) fence: Fence,
    pub(super) fences: u16,
}

/// Those who wait for something to be said.
#[derive(Debug, Clone)]
pub(super) struct Ears {
    pub(super) bells: Arc<Bells<Pushed>>,
    pub(super) left: Arc<Left>,
    pub(super) watchers: Arc<Watchers>,
}

impl Ears {
    pub(super) fn new(left: Arc<Left>) -> Self {
        Ears { bells: Arc::default(), left, watchers: Arc::default() }
    }

    /// Who was admitted, or has to look again: `token`, then `fence` and, of several, `fences`, by lines. Or which value has
    /// changed.
    pub(super) fn hear(&self, push: &PushInfo) {
        let (PushKind::Message, Some(payload)) = (&push.kind, push.data.get(1)) else { return };
        let payload = text(payload);
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
