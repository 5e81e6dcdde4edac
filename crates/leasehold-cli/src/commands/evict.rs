//! `evict` and `adopt`: end another holder's lock, at once or later, once the user confirms.

use std::io::{IsTerminal, Write};

use leasehold::{Adopted, Departed, Departure, Fence, Holder, Locks, Name};
use serde_json::{Value, json};

use crate::args::{Adopt, Evict, Output};
use crate::duration::{as_ms, short};
use crate::exit::{Failure, Kind, NOT_ACQUIRED};
use crate::name;
use crate::output::{Answer, print};

pub(crate) async fn evict(locks: &Locks, args: &Evict, output: Output) -> Result<Answer, Failure> {
    let name = name(&args.name)?;
    let one = match &args.holder {
        Some(wanted) => Some(holder(locks, &name, wanted).await?),
        None => None,
    };
    let question = async || {
        let evicted = match &one {
            Some((holder, _)) => vec![holder.clone()],
            None => holders(locks, &name).await?,
        };
        Ok(match evicted.is_empty() {
            true => format!("Nobody holds `{name}`. Raise its fence all the same?"),
            false => {
                format!("Take `{name}` from {}? It may be in the middle of its work.", labels(&evicted))
            }
        })
    };
    let otherwise = format!("to evict the holder of `{name}` without being asked, say --yes");
    if !args.yes && !confirmed(otherwise, question).await? {
        return Ok(Answer::default().with_code(NOT_ACQUIRED));
    }
    // Subscribed before the eviction, so that no confirmation is missed.
    let departures = args.wait_gone.then(|| locks.departures());
    let evicted = match &one {
        None => locks.evict(name.clone()).await?,
        Some((holder, fence)) => {
            let evicted = locks.evict_holder(name.clone(), *fence).await?;
            if evicted.holders.is_empty() {
                let message = format!("`{name}` is no longer held by {}", holder.owner);
                return Err(Failure::new(Kind::NotHeld, message));
            }
            evicted
        }
    };
    if output == Output::Text {
        print(match evicted.holders.is_empty() {
            true => format!("{name} was not held\n"),
            false => format!("{name} was taken from {}\n", labels(&evicted.holders)),
        })?;
    }
    let owners: Vec<&str> = evicted.holders.iter().map(|holder| holder.owner.as_str()).collect();
    let mut object = json!({ "name": name.as_str(), "evicted": owners });
    let Some(departures) = departures else { return Ok(Answer::new(object, "")) };
    let departed = departures.of(name.clone(), &evicted).await?;
    object["gone"] = departed.iter().map(as_json).collect();
    let lines: String = departed.iter().map(|departed| format!("{}\n", end_of(departed).1)).collect();
    Ok(Answer::new(object, lines))
}

/// The end of an evicted holder's work, as a word and as a sentence.
fn end_of(departed: &Departed) -> (&'static str, String) {
    let owner = &departed.holder.owner;
    match departed.how {
        Departure::Confirmed => ("confirmed", format!("{owner} confirmed that its work has ended")),
        Departure::Expired => {
            ("expired", format!("{owner} has not confirmed its end; its lease has run out"))
        }
        _ => ("unknown", "the lock of another library has no expiry: its end cannot be known".to_owned()),
    }
}

fn as_json(departed: &Departed) -> Value {
    let fence = departed.holder.fence.map(Fence::get);
    json!({ "owner": departed.holder.owner.as_str(), "fence": fence, "how": end_of(departed).0 })
}

async fn holders(locks: &Locks, name: &Name) -> Result<Vec<Holder>, Failure> {
    let status = locks.inspect(name.clone()).await?;
    Ok(status.map(|status| status.holders).unwrap_or_default())
}

/// The one holder with this fence, or else with this label.
async fn holder(locks: &Locks, name: &Name, wanted: &str) -> Result<(Holder, Fence), Failure> {
    let holders = holders(locks, name).await?;
    let has_fence = |holder: &&Holder| holder.fence.is_some_and(|fence| fence.to_string() == wanted);
    let found: Vec<&Holder> = match holders.iter().find(has_fence) {
        Some(holder) => vec![holder],
        None => holders.iter().filter(|holder| holder.owner.as_str() == wanted).collect(),
    };
    match found.as_slice() {
        [] if holders.is_empty() => Err(Failure::new(Kind::NotHeld, format!("`{name}` is not held"))),
        [] => {
            let held_by = with_fences(&holders);
            Err(Failure::new(Kind::NotHeld, format!("`{name}` is not held by `{wanted}`, but by {held_by}")))
        }
        [one] => one.fence.map(|fence| ((*one).clone(), fence)).ok_or_else(|| {
            Failure::usage(format!(
                "`{name}` is held by {}: it has no fence; evict all holders, without --holder",
                one.owner
            ))
        }),
        several => Err(Failure::usage(format!(
            "`{wanted}` is the label of {} holders of `{name}`; give the fence of one: {}",
            several.len(),
            with_fences(several.iter().copied())
        ))),
    }
}

fn with_fences<'a>(holders: impl IntoIterator<Item = &'a Holder>) -> String {
    let shown = holders.into_iter().map(|holder| match holder.fence {
        Some(fence) => format!("{} (fence {fence})", holder.owner),
        None => format!("{} (no fence)", holder.owner),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn labels(holders: &[Holder]) -> String {
    holders.iter().map(|holder| holder.owner.as_str()).collect::<Vec<_>>().join(", ")
}

/// Sets an expiry for a lock that has none.
pub(crate) async fn adopt(locks: &Locks, args: &Adopt) -> Result<Answer, Failure> {
    let name = name(&args.name)?;
    let ttl = short(args.ttl);
    let question = async || {
        Ok(match holders(locks, &name).await?.first() {
            Some(holder) if holder.is_endless() => {
                format!("Have `{name}` end in {ttl}? Whoever holds it may be at work for longer.")
            }
            Some(holder) => format!("`{name}` is held by {}, and has an end. Go on?", holder.owner),
            None => format!("Nobody holds `{name}`. Go on?"),
        })
    };
    let otherwise = format!("to give `{name}` an end without being asked, say --yes");
    if !args.yes && !confirmed(otherwise, question).await? {
        return Ok(Answer::default().with_code(NOT_ACQUIRED));
    }
    let adopted = locks.adopt(name.clone(), args.ttl).await?;
    let is_adopted = matches!(adopted, Adopted::Adopted { .. });
    let (holder, remaining, text) = match adopted {
        Adopted::Adopted { holder } => {
            let text = format!("{name} had no end; it is free in {ttl} at the latest");
            (Some(holder), Some(args.ttl), text)
        }
        Adopted::Ends { holder, remaining } => {
            let text = format!(
                "{name} is held by {holder} for another {} unless renewed, and was left as it is",
                short(remaining)
            );
            (Some(holder), Some(remaining), text)
        }
        Adopted::NotHeld => (None, None, format!("{name} was not held")),
    };
    let object = json!({
        "name": name.as_str(),
        "adopted": is_adopted,
        "holder": holder.as_ref().map(leasehold::Owner::as_str),
        "remaining_ms": remaining.map(as_ms),
    });
    Ok(Answer::line(object, text))
}

/// Asks the user at a terminal; elsewhere fails with `otherwise`, the advice for scripts.
async fn confirmed(
    otherwise: String,
    question: impl AsyncFnOnce() -> Result<String, Failure>,
) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(otherwise));
    }
    eprint!("{} [y/N] ", question().await?);
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
