//! What this user may do: tried, not asked, since a right may be lacking for more than one reason, and to ask is a right too.

use std::collections::BTreeSet;

use redis::{Cmd, RedisError, Value, cmd};

use super::super::address::without_arguments;
use super::super::choose::{Scripts, forbidden};
use super::Patient;
use crate::doctor::{Finding, Verdict};
use crate::token::{Owner, Token};

const PROBE: &str = include_str!("probe.lua");

/// The command whose right is optional, as the probe names it.
const COUNTS: &str = "PUBSUB";

/// What cannot be done, and why.
#[derive(Debug, Default)]
struct Lacking {
    commands: BTreeSet<String>,
    keys: bool,
    channels: bool,
    /// `PUBSUB NUMSUB`, which scripts can do without.
    counts: bool,
}

/// The keys and the channel of a lock that nobody has.
struct Unused {
    main: String,
    line: String,
    wait: String,
    fence: String,
    channel: String,
}

/// Whether scripts run, and whether everything in them does; or, where locks are to work without, whether that does.
pub(super) async fn all(server: &mut Patient, prefix: &str, scripts: Scripts) -> Vec<Finding> {
    let user = server.ask::<String>(cmd("ACL").arg("WHOAMI")).await.ok();
    let number = Token::fresh(&Owner::this_process()).map(|token| token.expose()[..16].to_owned());
    let main = format!("{prefix}leasehold-doctor-{}", number.unwrap_or_default());
    let unused = Unused {
        line: format!("{{{main}}}:line"),
        wait: format!("{{{main}}}:wait"),
        fence: format!("{{{prefix}}}:fence"),
        channel: format!("{{{prefix}}}:leasehold-doctor"),
        main,
    };
    let mut lacking = Lacking::default();
    let ran = server.ask::<Value>(cmd("EVAL").arg("return 1").arg(0)).await;
    let known = server.ask::<Value>(&digest()).await;
    let why = [ran.as_ref().err(), known.as_ref().err()].into_iter().flatten().find_map(forbidden);
    let finding = match (scripts, why, ran) {
        (Scripts::Off, ..) => Finding::caution(
            "scripts",
            format!("not used, as the URL says: {WITHOUT}"),
            "leave out `scripts=off`, unless this server is to run none",
        ),
        (Scripts::Auto, Some(why), _) => Finding::caution(
            "scripts",
            format!("they do not run ({why}), so locks work without: {WITHOUT}"),
            "allow EVAL and EVALSHA, or say `scripts=off` in the URL",
        ),
        (_, _, Ok(_)) => Finding::good("scripts", "they run"),
        (_, _, Err(error)) => {
            lacking.note("EVAL", &text(&error));
            Finding::bad(
                "scripts",
                format!("they do not run: {}", text(&error)),
                "allow EVAL and EVALSHA: each operation on a lock is one script",
            )
        }
    };
    match finding.verdict {
        Verdict::Caution => lacking.without_scripts(server, prefix, &unused).await,
        _ => lacking.with_scripts(server, prefix, &unused).await,
    }
    vec![finding, lacking.finding(user.as_deref(), prefix)]
}

/// What it costs to do without.
const WITHOUT: &str = "no order of arrival, no release that wakes the next, no readers, no permits; whoever waits asks again and \
                       again";

/// A digest that no script has is refused in other words than one that may not be sent.
fn digest() -> Cmd {
    cmd("EVALSHA").arg("0".repeat(40)).arg(0).take()
}

fn scan(prefix: &str) -> Cmd {
    cmd("SCAN").arg(0).arg("MATCH").arg(format!("{prefix}leasehold-doctor")).arg("COUNT").arg(1).take()
}

impl Lacking {
    async fn with_scripts(&mut self, server: &mut Patient, prefix: &str, unused: &Unused) {
        let Unused { main, line, wait, fence, channel } = unused;
        let mut probe = cmd("EVAL");
        probe.arg(PROBE).arg(0).arg(&[main, line, wait, fence, channel]);
        let failed: Vec<(String, String)> = server.ask(&probe).await.unwrap_or_default();
        failed.iter().for_each(|(command, why)| self.note(command, why));
        // What is sent beside scripts.
        let publish = cmd("PUBLISH").arg(channel).arg("").take();
        for (name, command) in [("EVALSHA", digest()), ("SCAN", scan(prefix)), ("PUBLISH", publish)] {
            self.try_out(server, name, &command).await;
        }
    }

    async fn without_scripts(&mut self, server: &mut Patient, prefix: &str, unused: &Unused) {
        let Unused { main, line, wait, fence, channel } = unused;
        for (name, command) in [
            ("TIME", cmd("TIME")),
            ("GET", cmd("GET").arg(fence).take()),
            ("GET", cmd("GET").arg(main).take()),
            ("PTTL", cmd("PTTL").arg(main).take()),
            ("PEXPIRE", cmd("PEXPIRE").arg(main).arg(1_000).take()),
            ("TYPE", cmd("TYPE").arg(main).take()),
            ("ZRANGE", cmd("ZRANGE").arg(main).arg(0).arg(0).take()),
            ("LLEN", cmd("LLEN").arg(line).take()),
            ("LRANGE", cmd("LRANGE").arg(line).arg(0).arg(0).take()),
            ("HMGET", cmd("HMGET").arg(wait).arg("x").take()),
            ("SCAN", scan(prefix)),
            ("PUBLISH", cmd("PUBLISH").arg(channel).arg("").take()),
            ("WATCH", cmd("WATCH").arg(main).take()),
            ("UNWATCH", cmd("UNWATCH")),
        ] {
            self.try_out(server, name, &command).await;
        }
        // Where nothing can be taken away, nothing is made.
        let del = cmd("DEL").arg(main).take();
        if self.try_out(server, "DEL", &del).await {
            self.try_out(server, "SET", &cmd("SET").arg(main).arg("x").arg("PX").arg(1_000).take()).await;
            self.try_out(server, "DEL", &del).await;
        }
        // At last: a transaction that cannot be ended is nobody's after this.
        if self.try_out(server, "MULTI", &cmd("MULTI")).await {
            self.try_out(server, "EXEC", &cmd("EXEC")).await;
        }
    }

    async fn try_out(&mut self, server: &mut Patient, name: &str, command: &Cmd) -> bool {
        let tried = server.ask::<Value>(command).await;
        if let Err(error) = &tried {
            self.note(name, &text(error));
        }
        tried.is_ok()
    }

    /// Errors of other kinds are told by whoever takes a lock.
    fn note(&mut self, command: &str, why: &str) {
        let why = why.to_ascii_lowercase();
        let is_a_right =
            ["permission", "the user executing the script can't"].iter().any(|it| why.contains(it));
        if is_a_right && why.contains("channel") {
            self.channels = true;
        } else if is_a_right && why.contains("access") && why.contains("key") {
            self.keys = true;
        } else if is_a_right || why.contains("unknown command") || why.contains("unknown redis command") {
            match command {
                COUNTS => self.counts = true,
                _ => drop(self.commands.insert(command.to_owned())),
            }
        }
    }

    fn finding(&self, user: Option<&str>, prefix: &str) -> Finding {
        let who = user.map_or_else(|| "this user".to_owned(), |user| format!("user `{user}`"));
        let mut may_not = Vec::new();
        let mut rules = Vec::new();
        if !self.commands.is_empty() {
            may_not.push(format!("send {}", self.commands.iter().cloned().collect::<Vec<_>>().join(", ")));
            rules.extend(self.commands.iter().map(|command| format!("+{}", command.to_ascii_lowercase())));
        }
        if self.keys {
            may_not.push("touch all the keys of locks".to_owned());
            rules.extend([format!("~{prefix}*"), format!("~{{{prefix}*")]);
        }
        if self.channels {
            may_not.push("publish to waiters".to_owned());
            rules.push(format!("&{{{prefix}}}:*"));
        }
        let name = user.unwrap_or("USER");
        if may_not.is_empty() && self.counts {
            return Finding::caution(
                "rights",
                format!("{who} may not send PUBSUB NUMSUB, so each hand-over publishes one more message"),
                format!("`ACL SETUSER {name} +pubsub|numsub`"),
            );
        }
        if self.counts {
            may_not.push("count who listens".to_owned());
            rules.push("+pubsub|numsub".to_owned());
        }
        if may_not.is_empty() {
            return Finding::good("rights", format!("{who} may do all that locks need"));
        }
        let more = if self.commands.contains("DEL") {
            " (what could not have been taken away was not tried)"
        } else {
            ""
        };
        let advice = format!(
            "`ACL SETUSER {name} {}`{more}, unless the server's configuration forbids it to everybody",
            rules.join(" ")
        );
        Finding::bad("rights", format!("{who} may not {}", may_not.join(", nor ")), advice)
    }
}

/// What the server said, in its own words.
fn text(error: &RedisError) -> String {
    let said = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    without_arguments(&said).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the words of Redis 7.0 and of Valkey 9.
    #[test]
    fn what_is_lacking_is_known_by_what_servers_say() {
        let lacking = |why: &str| {
            let mut lacking = Lacking::default();
            lacking.note("SET", why);
            (lacking.commands.len(), lacking.keys, lacking.channels)
        };
        for why in [
            "NOPERM this user has no permissions to run the 'set' command",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User u has no permissions to run the 'set' command",
            "ERR Unknown Redis command called from script",
            "ERR Unknown command called from script",
        ] {
            assert_eq!(lacking(why), (1, false, false), "{why}");
        }
        for why in [
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR ACL failure in script: No permissions to access a key",
        ] {
            assert_eq!(lacking(why), (0, true, false), "{why}");
        }
        for why in [
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            "ERR ACL failure in script: No permissions to access a channel",
        ] {
            assert_eq!(lacking(why), (0, false, true), "{why}");
        }
        for why in ["NOSCRIPT No matching script.", "READONLY You can't write against a read only replica."] {
            assert_eq!(lacking(why), (0, false, false), "{why}");
        }
    }

    #[test]
    fn the_advice_is_the_rule_that_is_missing() {
        let mut lacking = Lacking { keys: true, channels: true, ..Lacking::default() };
        lacking.commands.insert("ZADD".to_owned());
        let finding = lacking.finding(Some("web"), "lock:");
        assert_eq!(finding.verdict, Verdict::Bad);
        assert_eq!(
            finding.what,
            "user `web` may not send ZADD, nor touch all the keys of locks, nor publish to waiters"
        );
        let advice = finding.advice.unwrap_or_default();
        assert!(advice.starts_with("`ACL SETUSER web +zadd ~lock:* ~{lock:* &{lock:}:*`"), "{advice}");
    }
}
