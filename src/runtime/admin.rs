//! The admin port: metrics, health and quotas over HTTP, served by the control executor, a task per connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::timeout;

use super::control_thread::{Control, figures, post_quotas};
use crate::control::http::{self, Body, Head, Method, Persistence, Received, Response, Status};
use crate::values::limits::QUOTA_POSTS_BYTES_MAX;

/// Connections at once; more are closed unanswered.
const CONNECTIONS_MAX: usize = 64;
/// A head, a body and the taking of a reply each take this long at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may go on sending what nobody reads, after it was answered.
const LINGER: Duration = Duration::from_secs(2);
/// What is received at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What all connections share.
struct Admin {
    control: Rc<RefCell<Control>>,
    open: Cell<usize>,
    /// Bytes of bodies that are on their way.
    bodies: Cell<usize>,
}

/// Serves until the executor ends.
pub(super) fn serve(control: Rc<RefCell<Control>>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let admin = Rc::new(Admin { control, open: Cell::new(0), bodies: Cell::new(0) });
    glommio::spawn_local(async move {
        loop {
            let Ok(stream) = listener.accept().await else {
                // Most likely no descriptor is left; it would fail again at once.
                glommio::timer::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if admin.open.get() >= CONNECTIONS_MAX {
                continue;
            }
            admin.open.set(admin.open.get() + 1);
            let admin = Rc::clone(&admin);
            glommio::spawn_local(async move {
                // A connection that ends badly is its client's loss alone.
                let _ = converse(&admin, stream).await;
                admin.open.set(admin.open.get() - 1);
            })
            .detach();
        }
    })
    .detach();
    Ok(())
}

/// Requests one after the other, until either side has had enough.
async fn converse(admin: &Admin, mut stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let Ok(received_head) = within(head(&mut stream, &mut received)).await else { return Ok(()) };
        let (response, method, persistence) = match received_head {
            Received::Partial => return Ok(()),
            Received::Request(head) if head.method == Method::Post => {
                received.drain(..head.length);
                let (response, rest) = post(admin, &mut stream, &mut received, &head).await;
                let persistence = if rest == Rest::Read { head.persistence } else { Persistence::Close };
                (response, head.method, persistence)
            }
            Received::Request(head) => {
                received.drain(..head.length);
                let control = &admin.control;
                let totals = if head.route.needs_figures() { figures(control).await } else { None };
                let response = control.borrow().page(&head, totals.as_ref());
                (response, head.method, head.persistence)
            }
            Received::Refused(response) => (response, Method::Get, Persistence::Close),
        };
        let mut out = Vec::new();
        response.write(&mut out, method, persistence);
        within(stream.write_all(&out)).await?;
        if persistence == Persistence::Close {
            return linger(stream).await;
        }
    }
}

/// Receives until there is a whole head, or none to be expected any more.
async fn head(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Received> {
    loop {
        let found = http::receive(received);
        if found != Received::Partial {
            return Ok(found);
        }
        // It is refused when it grows too long, so this ends.
        if receive_more(stream, received).await? == 0 {
            return Ok(Received::Partial);
        }
    }
}

async fn receive_more(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let count = stream.read(&mut chunk).await?;
    received.extend_from_slice(&chunk[..count]);
    Ok(count)
}

/// Whether a request's body was read to its end, so that another request may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Read,
    Unread,
}

/// Takes a quota file, if it may come in.
async fn post(
    admin: &Admin,
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    head: &Head,
) -> (Response, Rest) {
    if let Err(refusal) = admin.control.borrow_mut().admit(head) {
        return (refusal, Rest::Unread);
    }
    let bytes = head.body.bytes() as usize;
    let Some(_room) = Room::take(&admin.bodies, bytes) else {
        let detail = "too many quota files are on their way: one at a time is wanted";
        return (Response::problem(Status::ServiceUnavailable, detail, None), Rest::Unread);
    };
    match within(body(stream, received, head)).await {
        Ok(body) => (post_quotas(&admin.control, body).await, Rest::Read),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let detail = format!("the body ended before its {bytes} bytes");
            (Response::problem(Status::BadRequest, &detail, None), Rest::Unread)
        }
        Err(_) => {
            let detail = format!("the body did not come within {REQUEST_TIMEOUT:?}");
            (Response::problem(Status::RequestTimeout, &detail, None), Rest::Unread)
        }
    }
}

async fn body(stream: &mut TcpStream, received: &mut Vec<u8>, head: &Head) -> io::Result<Vec<u8>> {
    let bytes = head.body.bytes() as usize;
    if matches!(head.body, Body::Waits(_)) && received.len() < bytes {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    while received.len() < bytes {
        if receive_more(stream, received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let next = received.split_off(bytes);
    Ok(std::mem::replace(received, next))
}

/// A share of the memory that bodies may take, given back when it is dropped.
struct Room<'a> {
    taken: &'a Cell<usize>,
    bytes: usize,
}

impl<'a> Room<'a> {
    fn take(taken: &'a Cell<usize>, bytes: usize) -> Option<Self> {
        let after = taken.get() + bytes;
        (after <= QUOTA_POSTS_BYTES_MAX).then(|| {
            taken.set(after);
            Self { taken, bytes }
        })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - self.bytes);
    }
}

/// Closes so that the reply arrives: with a body unread, closing at once would take the reply away from its reader.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write).await.map_err(io::Error::from)?;
    let unread = async {
        let mut discarded = Vec::new();
        while receive_more(&mut stream, &mut discarded).await? > 0 {
            discarded.clear();
        }
        io::Result::Ok(())
    };
    // However that ended, nothing more is owed.
    let _ = timeout(LINGER, async move { Ok(unread.await) }).await;
    within(stream.close()).await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(REQUEST_TIMEOUT, async move { Ok(work.await) }).await.map_err(io::Error::from)?
}
