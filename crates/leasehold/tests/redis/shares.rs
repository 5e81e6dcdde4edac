//! `redis:`, readers and permits of names that nobody else has to do with: what they cost, and that the short way to them decides
//! as the long one does.

use leasehold_testkit as common;

use common::{ms, secs};
use futures_util::future::join_all;
use leasehold::store::redis::Redis;
use leasehold::{
    Acquired, Claim, Fence, Name, Owner, Permits, Released, Renewed, Share, Store, Ticket, Token, Ttl, Wait,
};
use leasehold_lab::{Kind, Server};

fn claim(name: &str, share: Share, ttl_ms: u64) -> Claim {
    let token = Token::fresh(&Owner::this_process()).unwrap();
    let ticket = Ticket { names: Name::new(name).unwrap().into(), token, share, fence: None };
    Claim { ticket, ttl: Ttl::new(ms(ttl_ms)).unwrap(), wait: Wait::Never, fences: 1, detached: false }
}

fn permits(take: u32, limit: u32) -> Share {
    Share::Permits(Permits::new(take, limit).unwrap())
}

async fn take(store: &Redis, claim: &Claim) -> Ticket {
    match store.acquire(claim).await.unwrap() {
        Acquired::Granted(grant) => Ticket { fence: Some(grant.fence), ..claim.ticket.clone() },
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

/// How many commands the server executed, those of scripts among them.
fn calls(server: &Server) -> u64 {
    let calls = server.calls().unwrap();
    calls
        .iter()
        .filter(|(command, _)| !command.starts_with("config") && *command != "info")
        .map(|(_, n)| n)
        .sum()
}

#[tokio::test]
async fn a_share_that_is_free_costs_little_more_than_a_lock() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = Redis::open(&server.url()).await.unwrap();
        for together in [1, 100] {
            let mut each = Vec::new();
            for share in [Share::Exclusive, Share::Shared, permits(2, 5)] {
                let pairs = async |count: usize| {
                    join_all((0..count).map(async |i| {
                        let ticket = take(&store, &claim(&format!("x{i}"), share, 5_000)).await;
                        assert_eq!(store.release(&ticket).await.unwrap(), Released::Released);
                    }))
                    .await;
                };
                // Once, so that the scripts are known.
                pairs(together).await;
                server.forget_calls().unwrap();
                pairs(together).await;
                each.push(calls(&server));
                assert_eq!(
                    server.command(&["DBSIZE"]).unwrap().int(),
                    Some(1),
                    "only the highest fence is left"
                );
            }
            println!("{kind:?}: commands for {together} locks, readers and permits: {each:?}");
            assert!(each[1..].iter().all(|share| share * 2 <= each[0] * 3), "{kind:?}, {together}: {each:?}");
        }
    }
}

#[tokio::test]
async fn a_share_that_ended_beside_others_is_not_released() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = Redis::open(&server.url()).await.unwrap();
        for share in [Share::Shared, permits(1, 300)] {
            for count in [1, 100] {
                // It keeps the key there.
                let long = take(&store, &claim("x", share, 60_000)).await;
                let short =
                    join_all((0..count).map(async |_| take(&store, &claim("x", share, 60)).await)).await;
                tokio::time::sleep(ms(100)).await;
                let released =
                    join_all(short.iter().map(async |ticket| store.release(ticket).await.unwrap())).await;
                assert!(
                    released.iter().all(|released| *released == Released::NotHeld),
                    "{kind:?}: {released:?}"
                );
                assert_eq!(store.release(&long).await.unwrap(), Released::Released);
                assert_eq!(store.release(&long).await.unwrap(), Released::NotHeld);
            }
        }
    }
}

#[tokio::test]
async fn the_short_way_to_a_share_is_none_past_anybody() {
    let server = Server::start(Kind::Redis).unwrap();
    let store = Redis::open(&server.url()).await.unwrap();
    let other = Redis::open(&server.url()).await.unwrap();
    let busy = async |share: Share| {
        let attempts =
            join_all((0..20).map(async |_| store.acquire(&claim("x", share, 5_000)).await.unwrap())).await;
        attempts.into_iter().all(|answer| matches!(answer, Acquired::Busy(_)))
    };
    let alone = take(&store, &claim("x", Share::Exclusive, 5_000)).await;
    assert!(busy(Share::Shared).await && busy(permits(1, 5)).await);
    store.release(&alone).await.unwrap();
    let reader = take(&store, &claim("x", Share::Shared, 5_000)).await;
    assert!(busy(permits(1, 5)).await && busy(Share::Exclusive).await);
    // Whoever lets go hands over to one who waits.
    let writer = Claim { wait: Wait::Forever, ..claim("x", Share::Exclusive, 5_000) };
    let (granted, ()) = tokio::join!(take(&other, &writer), async {
        let name = Name::new("x").unwrap();
        while store.inspect(&name).await.unwrap().unwrap().waiters.is_empty() {}
        assert!(busy(Share::Shared).await, "past a writer who waits");
        assert_eq!(store.release(&reader).await.unwrap(), Released::Released);
    });
    assert!(granted.fence > reader.fence);
    other.release(&granted).await.unwrap();
    // All of the limit, and no more; the key ends with the claim.
    let all = take(&store, &claim("x", permits(5, 5), 5_000)).await;
    assert!(busy(permits(1, 5)).await);
    let left = server.command(&["PTTL", "lock:x"]).unwrap().int().unwrap();
    assert!((1..=5_000).contains(&left), "{left}");
    let longer = Ttl::new(secs(50)).unwrap();
    assert!(matches!(store.renew(&[(all.clone(), longer)]).await.remove(0), Ok(Renewed::Until(_))));
    // One who does not know the fence, or another one.
    let wrong = Ticket { fence: Some(Fence::new(1).unwrap()), ..all.clone() };
    assert_eq!(store.release(&Ticket { fence: None, ..all }).await.unwrap(), Released::Released);
    assert_eq!(store.release(&wrong).await.unwrap(), Released::NotHeld);
}
