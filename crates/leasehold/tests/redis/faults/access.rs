//! Passwords and rights: what is missing is named, nothing is half done, no secret is shown.

use std::sync::{Arc, Mutex};

use leasehold::store::redis::Redis;
use leasehold::{Acquired, Converted, Error, Event, Options, Released, Renewed, Share, Store, Ticket, Wait};
use leasehold_lab::{Kind, Server, Setup};

use super::{claim, client, granted, is_empty, ms, soon, until, until_waiting};

/// What a user needs, as the documentation has it. With another prefix, it is that in place of `lock:`.
const RULE: &str = "resetkeys ~lock:* ~{lock:* resetchannels &{lock:}:* -@all +hello +auth +ping +time +subscribe \
    +evalsha +eval +scan +publish +pubsub|numsub +get +set +del +exists +type +pttl +pexpire +hget +hset +hsetnx \
    +hdel +hlen +hincrby +lindex +linsert +llen +lpop +lpos +lpush +lrange +lrem +rpush +zadd +zrange +zrem +zremrangebyscore +zscore";

fn documented_rule() -> String {
    let document = include_str!("../../../../../docs/stores/redis.md");
    let (_, rule) = document.split_once("ACL SETUSER locks on >PASSWORD ").expect("the rule is documented");
    let rule = rule.split("```").next().unwrap();
    rule.replace('\\', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_rule_in_the_documentation_is_the_one_that_is_tested() {
    assert_eq!(documented_rule(), RULE.split_whitespace().collect::<Vec<_>>().join(" "));
}

fn url(server: &Server) -> String {
    format!("redis://locks:pass-word@{}?timeout=1000", server.addr())
}

fn start(kind: Kind, rule: &str) -> Server {
    Setup::new(kind).user("locks", &format!("on >pass-word {rule}")).user("default", "off").start().unwrap()
}

/// Everything a client can ask for, with waiting, handing over and every share.
async fn everything(server: &Server) -> Result<(), Error> {
    let (store, other) =
        (Arc::new(Redis::open(&url(server)).await?), Arc::new(Redis::open(&url(server)).await?));
    let first = claim("x", ms(20_000), Wait::Never);
    let grant = match store.acquire(&first).await? {
        Acquired::Granted(grant) => grant,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    };
    let ticket = Ticket { fence: Some(grant.fence), ..first.ticket.clone() };
    assert!(matches!(other.acquire(&claim("x", ms(20_000), Wait::Never)).await?, Acquired::Busy(_)));
    assert!(matches!(store.renew(&[(ticket.clone(), first.ttl)]).await.remove(0)?, Renewed::Until(_)));
    let longer = leasehold::Ttl::new(ms(40_000)).unwrap();
    assert!(matches!(store.renew(&[(ticket.clone(), longer)]).await.remove(0)?, Renewed::Until(_)));
    // Handed over, to one who waits and to one whose turn it is not.
    let waiting = claim("x", ms(20_000), Wait::Forever);
    let waiter = tokio::spawn({
        let (other, waiting) = (other.clone(), waiting.clone());
        async move { other.acquire(&waiting).await }
    });
    soon(async {
        while store.inspect(ticket.names.first()).await.is_ok_and(|status| status.unwrap().waiters.is_empty())
            && !waiter.is_finished()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    if waiter.is_finished() {
        soon(waiter).await.unwrap()?;
        panic!("it was not its turn");
    }
    assert_eq!(store.list("", 10).await?.len(), 1);
    assert_eq!(store.release(&ticket).await?, Released::Released);
    let Acquired::Granted(grant) = soon(waiter).await.unwrap()? else { panic!("it was its turn") };
    let ticket = Ticket { fence: Some(grant.fence), ..waiting.ticket };
    let Converted::Converted(grant) = other.convert(&ticket, Share::Shared).await? else { panic!("refused") };
    let ticket = Ticket { fence: Some(grant.fence), share: Share::Shared, ..ticket };
    assert!(matches!(other.renew(&[(ticket.clone(), longer)]).await.remove(0)?, Renewed::Until(_)));
    assert!(matches!(other.detach(&ticket, longer).await?, Renewed::Until(_)));
    assert_eq!(other.evict(ticket.names.first()).await?.holders.len(), 1);
    assert_eq!(other.release(&ticket).await?, Released::NotHeld);
    server.command(&["SET", "lock:endless", "theirs"]).unwrap();
    let endless = leasehold::Name::new("endless").unwrap();
    assert!(matches!(store.adopt(&endless, longer).await?, leasehold::Adopted::Adopted { .. }));
    other.evict(&endless).await?;
    // One that was not there when its turn came, and has its place again, before one who came later.
    let held = claim("q", ms(20_000), Wait::Never);
    store.acquire(&held).await?;
    let [early, late] =
        [(), ()].map(|()| leasehold::Claim { detached: true, ..claim("q", ms(20_000), Wait::Forever) });
    let waiters = [&late, &early].map(|claim| {
        let (other, claim) = (other.clone(), claim.clone());
        async move { other.acquire(&claim).await }
    });
    let entry = "x\n1\n1\n1\n1000\n20000\n{lock:}:nobody\n1\nlock:q";
    server.command(&["HSET", "{lock:q}:away", early.ticket.token.expose(), entry]).unwrap();
    let mut waiting = Vec::new();
    for (waiter, count) in waiters.into_iter().zip(1..) {
        let mut waiter = tokio::spawn(waiter);
        tokio::select! {
            () = until_waiting(server, "q", count) => waiting.push(waiter),
            answer = &mut waiter => panic!("it was not its turn: {:?}", answer.unwrap()?),
        }
    }
    store.release(&held.ticket).await?;
    let (late_waits, early_waits) = (waiting.remove(0), waiting.remove(0));
    soon(early_waits).await.unwrap()?;
    other.release(&early.ticket).await?;
    soon(late_waits).await.unwrap()?;
    other.release(&late.ticket).await?;
    let permits = leasehold::Permits::new(1, 1).unwrap().barging();
    let mut barging = claim("p", ms(20_000), Wait::Forever);
    barging.ticket.share = Share::Permits(permits);
    store.acquire(&barging).await?;
    let behind = leasehold::Claim {
        ticket: Ticket { token: claim("p", ms(1_000), Wait::Never).ticket.token, ..barging.ticket.clone() },
        ..barging.clone()
    };
    let waiter = tokio::spawn({
        let (other, behind) = (other.clone(), behind.clone());
        async move { other.acquire(&behind).await }
    });
    let refused = async {
        while !waiter.is_finished() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = until_waiting(server, "p", 1) => {}
        () = refused => {}
    }
    store.release(&barging.ticket).await?;
    soon(waiter).await.unwrap()?;
    other.release(&behind.ticket).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_with_the_least_rights() {
    for kind in Kind::ALL {
        let server = start(kind, RULE);
        everything(&server)
            .await
            .unwrap_or_else(|error| panic!("{kind:?}: {error}\n{:?}", server.command(&["ACL", "LOG"])));
        until("nothing is left", || is_empty(&server)).await;
    }
}

/// Users that were made before this right was documented do not have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_works_without_the_right_to_count_subscribers() {
    for kind in Kind::ALL {
        let server = start(kind, &RULE.replace("+pubsub|numsub ", ""));
        everything(&server).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        until("nothing is left", || is_empty(&server)).await;
    }
}

/// Values are under other keys than locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_needs_its_own_keys_and_no_other_right() {
    for kind in Kind::ALL {
        let server = start(kind, RULE);
        let locks = leasehold::connect(&url(&server)).await.unwrap();
        let latch = locks.latch("x", 1);
        let refused = latch.count_down().await.unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{kind:?}: {refused:?}");
        server.command(&["ACL", "SETUSER", "locks", "~latch:*", "~{latch:*"]).unwrap();
        let waiting = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait().await }
        });
        assert_eq!(latch.count_down().await.unwrap(), 0);
        waiting.await.unwrap().unwrap();
        latch.reset().await.unwrap();
        until("nothing is left", || is_empty(&server)).await;
    }
}

/// So that the rule stays the least; and whoever forgets one of them is told which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_missing_is_named() {
    let rights = || RULE.split_whitespace().filter_map(|word| word.strip_prefix('+'));
    for kind in Kind::ALL {
        // Whoever may not say hello or who he is does not get so far; the others are not needed by all servers.
        let optional = ["auth", "hello", "ping", "eval", "pubsub|numsub"];
        for right in rights().filter(|right| !optional.contains(right)) {
            // A server of its own: a request that the error left waiting would be granted on a shared one.
            let server = start(kind, &format!("{RULE} -{right}"));
            let error = soon(everything(&server)).await.expect_err(right);
            assert!(matches!(error, Error::Refused { .. }), "{kind:?} {right}: {error}");
            assert!(error.to_string().contains("NOPERM"), "{kind:?} {right}: {error}");
            let said = error.to_string().to_lowercase();
            assert!(said.contains(right), "{kind:?}: {right} is not named: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_channels_that_are_not_allowed_are_said_to_be() {
    for kind in Kind::ALL {
        for (had, has, word) in [
            ("~{lock:*", "~{lock:}:fence", "key"),
            ("~{lock:*", "", "key"),
            ("~lock:*", "", "key"),
            ("&{lock:}:*", "", "channel"),
        ] {
            let server = start(kind, &RULE.replace(had, has));
            let error = soon(everything(&server)).await.expect_err(had);
            let said = error.to_string();
            assert!(matches!(error, Error::Refused { .. }), "{kind:?} {had}: {error}");
            assert!(said.contains("NOPERM") && said.contains(word), "{kind:?} {had}: {error}");
            assert!(is_empty(&server), "{kind:?} {had}: something was done");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_or_none_lets_nobody_in_and_is_never_shown() {
    let server = Setup::new(Kind::Redis).password("pass-word").start().unwrap();
    for (credentials, hint) in
        [(":other-word@", "password"), ("nobody:other-word@", "password"), ("", "password")]
    {
        let url = format!("redis://{credentials}{}?timeout=1000", server.addr());
        let error = Redis::open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{credentials}: {error}");
        let said = format!("{error} {error:?}");
        assert!(said.contains(hint), "{said}");
        assert!(!said.contains("other-word"), "{said}");
        assert!(said.contains(&server.addr().to_string()), "{said}");
    }
    let right = Redis::open(&format!("redis://:pass-word@{}", server.addr())).await.unwrap();
    assert!(!format!("{right:?}").contains("pass-word"));
    for broken in
        ["redis://:pass-word@127.0.0.1:99999/", "redis://:pass-word@/x/y", "redis://:pass-word@[::1/"]
    {
        let error = Redis::open(broken).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("pass-word"), "{error:?}");
    }
}

/// Its rights are taken away while it holds and waits: it fails closed, and says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_is_removed_meanwhile_is_told_why() {
    let server = start(Kind::Redis, RULE);
    let store = Arc::new(Redis::open(&url(&server)).await.unwrap());
    let locks = client(&store, "a");
    granted(&store, &claim("x", ms(20_000), Wait::Never)).await;
    server.command(&["ACL", "DELUSER", "locks"]).unwrap();
    // Its connection is gone with it, and the next one is refused.
    let refused = soon(async {
        loop {
            match locks.mutex("y").try_lock().await.unwrap_err() {
                Error::Refused { why, .. } => return why,
                error => assert!(error.is_outcome_unknown(), "{error}"),
            }
        }
    })
    .await;
    assert!(refused.contains("password") && !refused.contains("pass-word"), "{refused}");
}

/// Deletes the user, or gives it another password and ends its connections.
const SHUT_OUT: [&[&str]; 2] =
    [&["ACL DELUSER locks"], &["ACL SETUSER locks resetpass >another", "CLIENT KILL USER locks"]];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_shut_out_is_told_so_and_by_which_server() {
    for commands in SHUT_OUT {
        let server = start(Kind::Redis, RULE);
        let failed: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = failed.clone();
        let hook = move |event| {
            if let Event::RenewalFailed { why, .. } = event {
                seen.lock().unwrap().push(why);
            }
            std::future::ready(())
        };
        let store = Arc::new(Redis::open(&url(&server)).await.unwrap());
        let locks = Options::default().owner("a").on_event(hook).over(store).unwrap();
        // A sixth of this TTL, which a renewal waits for its answer, is shorter than the time-out of the connection.
        let _renewed_soon = locks.mutex("x").ttl(ms(3_000)).lock().await.unwrap();
        let lease = locks.mutex("z").ttl(ms(60_000)).lock().await.unwrap();
        let other = Arc::new(Redis::open(&url(&server)).await.unwrap());
        let waiter = tokio::spawn({
            let other = client(&other, "b");
            async move { other.mutex("x").lock().await.map(drop).unwrap_err().to_string() }
        });
        until_waiting(&server, "x", 1).await;
        for command in commands {
            server.command(&command.split(' ').collect::<Vec<_>>()).unwrap();
        }
        let is_plain = |said: &str| {
            assert!(!said.contains("no answer in time"), "{said}");
            let is_told = said.contains("WRONGPASS");
            if is_told {
                assert!(said.contains(&server.addr().to_string()), "{said}");
                assert!(said.contains("check user and password") && !said.contains("pass-word"), "{said}");
            }
            is_told
        };
        until("a renewal fails", || failed.lock().unwrap().iter().any(|why| is_plain(why))).await;
        let waited = soon(waiter).await.unwrap();
        assert!(is_plain(&waited), "{waited}");
        for said in [
            locks.mutex("y").try_lock().await.map(drop).unwrap_err().to_string(),
            locks.inspect("x").await.map(drop).unwrap_err().to_string(),
            locks.cells().counter("n").add(1).await.unwrap_err().to_string(),
            lease.release().await.unwrap_err().to_string(),
        ] {
            assert!(is_plain(&said), "{said}");
        }
    }
}
