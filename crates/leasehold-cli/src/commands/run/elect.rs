//! `elect`: one term of office after the other. A term is a `run`: what is particular to it is what follows when it ends.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;

use super::runtime_bridge::{Outcome, RuntimeBridge};
use super::spec::RunSpec;
use super::supervise::Trouble;
use super::{Done, hold};
use crate::duration::short;
use crate::exit::{Failure, LOST, NOT_EXECUTABLE, NOT_FOUND};
use crate::output::{LogThread, Logger};

/// The pause before the next campaign; it doubles while commands end soon.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A command that ran for so long was well.
const RAN_WELL: Duration = Duration::from_secs(30);

/// Until somebody says that it is enough; or, `once`, until the command has ended by itself.
pub(super) fn elect(
    office: &mut RuntimeBridge,
    locks: &Locks,
    plan: &Arc<RunSpec>,
    trouble: Trouble,
    speaker: &LogThread,
    voice: Logger,
    once: bool,
) -> Result<Done, Failure> {
    let mut pause = PAUSE_MIN;
    loop {
        let why = match hold(office, locks, plan, trouble.clone(), speaker, voice) {
            Ok(done) if is_the_last(&done, once) => return Ok(done),
            Ok(done) => {
                if done.ran >= RAN_WELL {
                    pause = PAUSE_MIN;
                }
                match done.code {
                    LOST => "the lease was lost".to_owned(),
                    code => format!("`{}` ended with exit code {code}", plan.shown()),
                }
            }
            // A store that is away comes back, and others may lead meanwhile.
            Err(failure) if failure.kind == "unavailable" => failure.message,
            Err(failure) => return Err(failure),
        };
        speaker.warn(format!("{why}. Campaigning for {} again in {}", plan.names, short(pause)));
        let clock = office.clock().clone();
        let until = clock.now().plus(pause);
        if let Outcome::Signal(caught) = office.ask(async move { clock.sleep_until(until).await })? {
            return Ok(caught.into());
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether there is nothing to campaign for any more.
fn is_the_last(done: &Done, once: bool) -> bool {
    let ended_by_itself = done.code != LOST;
    let cannot_be_started = matches!(done.code, NOT_EXECUTABLE | NOT_FOUND);
    done.is_told || done.leaves_it || cannot_be_started || (once && ended_by_itself)
}
