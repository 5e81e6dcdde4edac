//! The record of the last `run --once-per`, a value beside the lock, if the store keeps values.
//!
//! It is for operators only. The lock alone decides whether a run may begin.

use std::time::Duration;

use leasehold::{Fence, Locks, Name, Names, Owner, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::duration::{as_ms, short};
use crate::timestamp;

/// The time for which a record outlives its period, so that an operator finds it days later.
const KEPT_AFTER: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    owner: String,
    /// The fence of the run's lease, which tells whether this run still holds the lock.
    fence: u64,
    period_ms: u64,
    /// By the clock of the machine that ran it, like `ended_ms`.
    started_ms: u64,
    ended_ms: Option<u64>,
    /// The exit code of `leasehold run`.
    exit_code: Option<u8>,
}

/// The state of the run by the lock and the record together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    /// The run has ended, and the lock is kept for the rest of the period.
    Done,
    /// The lock is free.
    Due,
    /// Another holder has the lock.
    Other,
}

impl RunRecord {
    pub(crate) fn started(owner: &Owner, fence: Fence, period: Duration) -> Self {
        RunRecord {
            owner: owner.to_string(),
            fence: fence.get(),
            period_ms: as_ms(period),
            started_ms: as_ms(timestamp::since_1970()),
            ended_ms: None,
            exit_code: None,
        }
    }

    pub(crate) fn ended(self, exit_code: u8) -> Self {
        let ended_ms = Some(as_ms(timestamp::since_1970()));
        RunRecord { ended_ms, exit_code: Some(exit_code), ..self }
    }

    /// Writes the record for each of these names, unless a later run has written its own. A store
    /// that keeps no values, or does not answer, gets none.
    pub(crate) async fn save(self, locks: Locks, names: Names) {
        let Ok(fence) = Fence::new(self.fence) else { return };
        let kept = Duration::from_millis(self.period_ms)
            .saturating_add(KEPT_AFTER)
            .min(leasehold::Ttl::MAX.as_duration());
        for name in &names {
            let cell = locks.cells().cell::<RunRecord>(cell_name(name)).ttl(kept);
            let _ = cell.set_fenced(fence, &self).await;
        }
    }

    pub(crate) async fn load(locks: Locks, name: Name) -> Option<Self> {
        let found = locks.cells().cell::<RunRecord>(cell_name(&name)).get().await.ok().flatten();
        found.filter(RunRecord::can_be_shown)
    }

    /// Any program can write the value, and text that is no label could steer a terminal.
    fn can_be_shown(&self) -> bool {
        Owner::new(&self.owner).is_ok()
    }

    /// Returns the state, and the time until the next run is allowed, if known.
    fn state(&self, status: &Status) -> (State, Option<Duration>) {
        let own = status.holders.iter().find(|holder| holder.fence.map(Fence::get) == Some(self.fence));
        match own {
            None if status.holders.is_empty() => (State::Due, Some(Duration::ZERO)),
            None => (State::Other, None),
            Some(_) if self.ended_ms.is_none() => (State::Running, None),
            Some(kept) => (State::Done, Some(kept.remaining)),
        }
    }

    pub(crate) fn as_json(&self, status: &Status) -> Value {
        let (state, next_in) = self.state(status);
        json!({
            "state": state,
            "owner": self.owner,
            "last_run": timestamp::from_ms(self.started_ms),
            "ended": self.ended_ms.map(timestamp::from_ms),
            "exit_code": self.exit_code,
            "period_ms": self.period_ms,
            "next_run": next_in.map(timestamp::after),
        })
    }

    pub(crate) fn text(&self, status: &Status) -> String {
        let ended = match (self.ended_ms, self.exit_code) {
            (Some(ended_ms), Some(code)) => {
                let took = short(Duration::from_millis(ended_ms.saturating_sub(self.started_ms)));
                format!("exit code {code} after {took}")
            }
            _ => "its end was not recorded".to_owned(),
        };
        let then = match self.state(status) {
            (State::Running, _) => "runs now".to_owned(),
            (State::Due, _) => format!("{ended}; next run allowed now"),
            (_, Some(next_in)) => format!("{ended}; next run allowed at {}", timestamp::after(next_in)),
            (_, None) => ended,
        };
        format!("last run: {} by {}, {then}", timestamp::from_ms(self.started_ms), self.owner)
    }

    pub(crate) fn word(&self, status: &Status) -> String {
        match (self.state(status), self.exit_code) {
            ((State::Running, _), _) => "running".to_owned(),
            ((State::Done, _), Some(code)) => format!("done, exit {code}"),
            _ => "-".to_owned(),
        }
    }
}

fn cell_name(name: &Name) -> String {
    format!("leasehold-last-run/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_whose_owner_is_no_label_is_not_shown() {
        let record = |owner: &str| -> RunRecord {
            let value = json!({ "owner": owner, "fence": 1, "period_ms": u64::MAX, "started_ms": u64::MAX });
            serde_json::from_value(value).expect("a record")
        };
        assert!(record("web1:12 (anna: report)").can_be_shown());
        for owner in ["", "\u{1b}[2J", "two\nlines", &"x".repeat(129)] {
            assert!(!record(owner).can_be_shown(), "{owner:?}");
        }
        // Odd numbers are shown without a panic.
        let strange = record("anna");
        let name = Name::new("x").expect("a name");
        let free = Status { name, holders: Vec::new(), waiters: Vec::new() };
        assert!(strange.text(&free).contains("its end was not recorded"));
        assert_eq!(strange.as_json(&free)["state"], "due");
    }
}
