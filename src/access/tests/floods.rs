//! Passwords, and those who try many.

use super::*;
use crate::access::passwords::{self, PasswordCheck};
use crate::access::turns::WAITING_OF_ADDRESS;

const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

#[test]
fn passwords_are_checked_for_existing_users() {
    let passwords = Passwords::new().unwrap();
    let users = [alice()];
    let verify =
        |name, password| runtime().block_on(passwords.verify(&users, HERE, name, password));
    for _ in 0..2 {
        assert_eq!(verify("alice", b"correct horse"), PasswordCheck::Right);
        assert_eq!(verify("alice", b"correct hors"), PasswordCheck::Wrong);
        assert_eq!(verify("alice", b""), PasswordCheck::Wrong);
        assert_eq!(verify("bob", b"correct horse"), PasswordCheck::Wrong);
        assert_eq!(verify("alice", &[b'x'; 5000]), PasswordCheck::Wrong);
    }
    let other = [User { hash: HASH.replace("jydO", "jydP"), ..alice() }];
    let verify = |users: &[User]| {
        runtime().block_on(passwords.verify(users, HERE, "alice", b"correct horse"))
    };
    assert_eq!(verify(&other), PasswordCheck::Wrong, "what was right is right for that hash alone");
    passwords.keep(&[]);
    assert_eq!(verify(&[]), PasswordCheck::Wrong);
}

#[test]
fn the_hash_of_an_unknown_user_has_the_same_cost() {
    let dear = User { cost: 12, ..alice() };
    let parts: bcrypt::HashParts = passwords::unknown_user(&[alice(), dear]).parse().unwrap();
    assert_eq!(parts.get_cost(), 12);
    assert!(passwords::unknown_user(&[]).parse::<bcrypt::HashParts>().is_ok());
}

#[test]
fn a_flood_of_wrong_passwords_excludes_no_user_already_authenticated() {
    let passwords = Passwords::new().unwrap();
    let users = [alice()];
    runtime().block_on(async {
        assert_eq!(
            passwords.verify(&users, HERE, "alice", b"correct horse").await,
            PasswordCheck::Right
        );
        let guesses: Vec<Vec<u8>> = (0..64u8).map(|guess| vec![b'a' + guess % 26, guess]).collect();
        let mut flood: Vec<_> = guesses
            .iter()
            .map(|guess| Box::pin(passwords.verify(&users, HERE, "alice", guess)))
            .collect();
        let (mut busy, mut answered) = (0, 0);
        let mut waiting = Vec::new();
        for mut guess in flood.drain(..) {
            match futures_poll(&mut guess).await {
                Some(PasswordCheck::Busy) => busy += 1,
                // Where this thread did not run for a while, some are through by now.
                Some(PasswordCheck::Wrong) => answered += 1,
                Some(PasswordCheck::Right) => panic!("it was a guess"),
                None => waiting.push(guess),
            }
        }
        let begun = 1 + WAITING_OF_ADDRESS;
        assert_eq!(busy + answered + waiting.len(), 64);
        // One that has been verified meanwhile has given its turn to another, which nobody polls.
        assert!(busy > 0 && waiting.len() <= begun + 1, "{} wait", waiting.len());
        assert!(answered > 0 || waiting.len() >= begun, "{} wait", waiting.len());
        assert_eq!(
            passwords.verify(&users, HERE, "alice", b"correct horse").await,
            PasswordCheck::Right
        );
        for guess in waiting {
            assert_eq!(guess.await, PasswordCheck::Wrong);
        }
    });
}

/// They get access although their password was not verified before.
#[test]
fn a_flood_of_wrong_passwords_excludes_no_other_address() {
    let passwords = Arc::new(Passwords::new().unwrap());
    runtime().block_on(async {
        let flood: Vec<_> = (0..64u8)
            .map(|guess| {
                let passwords = Arc::clone(&passwords);
                tokio::spawn(async move {
                    passwords.verify(&[alice()], ELSEWHERE, "alice", &[b'g', guess]).await
                })
            })
            .collect();
        // All of them have come before.
        tokio::task::yield_now().await;
        let right = passwords.verify(&[alice()], HERE, "alice", b"correct horse").await;
        assert_eq!(right, PasswordCheck::Right);
        let mut busy = 0;
        for guess in flood {
            let answer = guess.await.unwrap();
            assert_ne!(answer, PasswordCheck::Right);
            busy += usize::from(answer == PasswordCheck::Busy);
        }
        assert!(busy > 0, "it was no flood");
    });
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        let polled = std::pin::Pin::new(&mut *future).poll(cx);
        std::task::Poll::Ready(match polled {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
