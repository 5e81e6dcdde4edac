//! Evictions, and the notices that go with them.

use redis::cmd;

use super::link::explained;
use super::{Redis, reply, script};
use crate::claim::{Evicted, Names};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::Notice;

impl Redis {
    /// Takes a name from its holders, or from the one with this fence. The script tells all clients of the prefix.
    pub(super) async fn take_away(&self, name: &Name, only: Option<Fence>) -> Result<Evicted> {
        let args = [&self.lowest().to_string(), &reply::fence_text(only), &self.ears.channel];
        let reply = self.ask(&script::EVICT, &name.clone().into(), &args.map(String::as_str)).await?;
        match reply.word().as_str() {
            "evicted" => Ok(Evicted { holders: reply::holders(reply.list(1)) }),
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn tell_ended(&self, names: &Names, fence: Fence) -> Result<()> {
        let session = self.link.session().await?;
        for name in names {
            let notice = Notice::Ended { name: name.clone(), fence }.to_text(&self.settings.prefix);
            let publish = cmd("PUBLISH").arg(&self.ears.channel).arg(notice).take();
            self.link.command(&session, &publish).await.map_err(explained)?;
        }
        Ok(())
    }
}
