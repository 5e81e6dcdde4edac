//! `elect`: repeats a run, one term after the other.

use std::time::Duration;

use super::runtime_bridge::Outcome;
use super::{RunEnd, Session};
use crate::duration::short;
use crate::exit::{Failure, Kind, LOST, NOT_EXECUTABLE, NOT_FOUND};
use crate::log;

/// The first pause before a new campaign; it doubles while commands end early.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A command that ran this long resets the pause.
const RAN_WELL: Duration = Duration::from_secs(30);

impl Session {
    /// Campaigns until a signal; with `once`, until the command has ended by itself.
    pub(super) fn elect(&mut self, once: bool) -> Result<RunEnd, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            let why = match self.run() {
                Ok(end) if is_last_term(&end, once) => return Ok(end),
                Ok(end) => {
                    if end.ran >= RAN_WELL {
                        pause = PAUSE_MIN;
                    }
                    match end.code {
                        LOST => "the lease was lost".to_owned(),
                        code => format!("`{}` ended with exit code {code}", self.spec.shown_command()),
                    }
                }
                // The store may come back, and another candidate may lead meanwhile.
                Err(failure) if failure.kind == Kind::Unavailable => failure.message,
                Err(failure) => return Err(failure),
            };
            log::warn(format_args!("{why}. Campaigning for {} again in {}", self.spec.names, short(pause)));
            let (clock, until) = (self.bridge.clock.clone(), self.bridge.now().plus(pause));
            let sleep = async move { clock.sleep_until(until).await };
            if let Outcome::Signal(caught) = self.bridge.run_until_signal(sleep)? {
                return Ok(caught.into());
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn is_last_term(end: &RunEnd, once: bool) -> bool {
    let RunEnd { code, verdict, .. } = end;
    let ended_by_itself = *code != LOST;
    let cannot_be_started = matches!(*code, NOT_EXECUTABLE | NOT_FOUND);
    verdict.is_end_requested || verdict.leaves_lease() || cannot_be_started || (once && ended_by_itself)
}
