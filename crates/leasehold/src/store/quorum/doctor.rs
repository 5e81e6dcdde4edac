//! Whether nodes are fit for a quorum: what `leasehold doctor` says of `redlock:`. Each is examined as a server of its own, by the
//! doctor of `redis:`; here it is said what they come to together.

use std::collections::HashSet;
use std::time::Duration;

use super::Quorum;
use super::settings::Settings;
use crate::claim::Holder;
use crate::doctor::{Finding, Fine, Verdict, not_taken, tried};
use crate::error::{Error, Result, Short};
use crate::password::Password;
use crate::store::Store;
use crate::store::redis::doctor::Examined;

/// So many names are looked at.
const NAMES_MAX: usize = 1_000;

pub(crate) async fn examine(url: &str, password: Option<&Password>) -> Result<Vec<Finding>> {
    let (nodes, settings) = Quorum::parsed(url, password)?.checked()?;
    let timeout = settings.timeout.max(super::CONNECT_TIMEOUT);
    let examined = nodes.iter().map(|(_, address)| Examined::new(address, timeout));
    let examined = futures_util::future::join_all(examined.collect::<Vec<_>>()).await;
    // Where nobody is there, there is nothing to examine.
    if examined.iter().all(|node| node.is_err()) {
        return Err(match Quorum::open_with(url, password).await {
            Err(error) => error,
            Ok(_) => Error::Unreachable { store: "redlock", why: "its nodes come and go".to_owned() },
        });
    }
    let mut findings = Vec::new();
    let mut clocks = Vec::new();
    let mut servers: Vec<(String, &str)> = Vec::new();
    for ((name, _), node) in nodes.iter().zip(examined) {
        match node {
            Ok(node) => {
                if let Some(run_id) = &node.run_id {
                    let twin = servers.iter().find(|(other, _)| other == run_id);
                    findings.extend(twin.map(|(_, other)| same_server(name, other)));
                    servers.push((run_id.clone(), name));
                }
                clocks.extend(node.clock.map(|(ahead_us, _)| (name.as_str(), ahead_us)));
                findings.extend(of_node(name, node));
            }
            Err(error) => findings.push(Finding::caution(
                "node",
                format!("{name}: {error}"),
                "see that it runs and can be reached: the more nodes are away, the fewer may fail",
            )),
        }
    }
    findings.extend(agreement(&clocks, &settings));
    match Quorum::open_with(url, password).await {
        Ok(store) => {
            store.fleet.greet_all().await;
            findings.extend(voters(&store));
            findings.push(degraded(&store).await);
            findings.push(tried(&store).await);
        }
        Err(error) => findings.push(not_taken(&error)),
    }
    Ok(findings)
}

/// Two nodes have the same run_id.
fn same_server(name: &str, other: &str) -> Finding {
    let what = format!("{name} is the same server as {other}: together they have one vote");
    Finding::bad("node", what, "name each server once; a quorum needs at least three servers")
}

/// One line where all is well, and whatever is not.
fn of_node(name: &str, node: Examined) -> Vec<Finding> {
    let away = node.clock.map_or_else(String::new, |(_, round_trip)| format!(", {} away", Fine(round_trip)));
    let server =
        node.findings.iter().find(|finding| finding.check == "server").map_or("", |finding| &finding.what);
    let mut findings = vec![Finding::good("node", format!("{name}: {server}{away}"))];
    // What a restart forgets costs it its vote for a while, and nobody a lock; clocks and fences are judged together.
    let apart = ["persistence", "clock", "fence", "round trip"];
    for finding in node.findings {
        if finding.verdict > Verdict::Good && !apart.contains(&finding.check) {
            findings.push(Finding { what: format!("{name}: {}", finding.what), ..finding });
        }
    }
    findings
}

fn agreement(clocks: &[(&str, i64)], settings: &Settings) -> Option<Finding> {
    let check = "clocks";
    let first = clocks.iter().min_by_key(|(_, ahead_us)| *ahead_us)?;
    let last = clocks.iter().max_by_key(|(_, ahead_us)| *ahead_us)?;
    let apart = Duration::from_micros(last.1.abs_diff(first.1));
    let what = format!(
        "{} is {} ahead of {}, and they may be {} apart",
        last.0,
        Fine(apart),
        first.0,
        Short(settings.skew)
    );
    let advice = "have all of them set by NTP: a node that is too far from the others has no vote";
    Some(if apart > settings.skew {
        Finding::bad(check, what, advice)
    } else if apart > settings.skew / 2 {
        Finding::caution(check, what, advice)
    } else {
        Finding::good(check, format!("they agree to {}", Fine(apart)))
    })
}

fn voters(store: &Quorum) -> Vec<Finding> {
    let fleet = &store.fleet;
    let mut findings = Vec::new();
    let (mut able, mut servers) = (0, HashSet::new());
    for node in &fleet.nodes {
        // What cannot be reached has been said.
        let Ok(session) = node.session() else { continue };
        match fleet.unless_young(node.age()) {
            // Two names of one server have one vote.
            Ok(()) => able += usize::from(servers.insert(session.run_id.clone())),
            Err(said) => findings.push(Finding::caution(
                "vote",
                format!("{}: {said}", node.name),
                "wait until then; `?quarantine=off` is for nodes that are new, where nobody can hold anything yet",
            )),
        }
    }
    let (needed, all) = (fleet.quorum(), fleet.nodes.len());
    let what = format!("{able} of {all} nodes can vote, and {needed} are needed");
    findings.push(if able < needed {
        Finding::bad("quorum", what, "no lock can be taken until more of them can")
    } else if able == needed {
        Finding::caution("quorum", format!("{what}: none may fail"), "see to those that cannot")
    } else {
        Finding::good("quorum", format!("{what}: {} may fail", able - needed))
    });
    if fleet.settings.quarantine.is_zero() {
        findings.push(Finding::caution(
            "quarantine",
            "off: a node that starts anew may forget what it granted and vote for another, so that two may hold one lock",
            "leave `?quarantine=off` out once the nodes are up",
        ));
    }
    findings
}

async fn degraded(store: &Quorum) -> Finding {
    let check = "leases";
    let found = match store.list("", NAMES_MAX).await {
        Ok(found) => found,
        Err(error) => {
            return Finding::caution(
                check,
                format!("could not be seen: {error}"),
                "see what else is not good here",
            );
        }
    };
    let is_degraded = |holder: &Holder| holder.nodes.is_some_and(|nodes| nodes.is_degraded());
    let held = found.iter().filter(|status| !status.holders.is_empty()).count();
    let names: Vec<&str> = found
        .iter()
        .filter(|status| status.holders.iter().any(is_degraded))
        .map(|status| status.name.as_str())
        .collect();
    match names.as_slice() {
        [] => Finding::good(check, format!("{held} held, none by a bare majority")),
        [first, ..] => Finding::caution(
            check,
            format!(
                "{} of {held} are held by a bare majority, `{first}` among them: one node more, and they are lost",
                names.len()
            ),
            "see to the nodes that are away; a renewal puts a lease back on a node that has come back",
        ),
    }
}
