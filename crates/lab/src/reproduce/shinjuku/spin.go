// The spin server in Go: a goroutine for each request, as servers in Go are written, on as many
// cores as there are worker threads elsewhere. The work is the loop of the other systems, with
// their number of iterations per millisecond.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
)

const (
	requestLen = 32
	replyLen   = 40
	// Longest work that is accepted, in nanoseconds.
	maxWork = 10_000_000_000
)

var sink uint64

func work(iterations uint64) {
	x := iterations
	for ; iterations > 0; iterations-- {
		x = (x^(x>>29))*0xd129_42ab_1fe7_2b6d + 1
	}
	if x == 0 {
		sink = x
	}
}

// handle answers a request; ok is false if the bytes are none.
func handle(request []byte, perMs uint64) (reply [replyLen]byte, ok bool) {
	if len(request) != requestLen || string(request[:4]) != "TWsp" || request[4] != 1 || request[5] != 1 {
		return reply, false
	}
	ns := binary.LittleEndian.Uint64(request[16:])
	if ns > maxWork {
		return reply, false
	}
	start := time.Now()
	work((ns*perMs + 500_000) / 1_000_000)
	copy(reply[:], request)
	reply[5] = 2
	binary.LittleEndian.PutUint64(reply[requestLen:], uint64(time.Since(start)))
	return reply, true
}

func serve(conn *net.UDPConn, perMs uint64) {
	// One byte more than a request, to recognize longer datagrams.
	var bytes [requestLen + 1]byte
	for {
		// An error concerns an earlier reply, whose loss its client notices.
		n, client, err := conn.ReadFromUDPAddrPort(bytes[:])
		if err != nil {
			continue
		}
		go func(request [requestLen + 1]byte, client netip.AddrPort) {
			if reply, ok := handle(request[:n], perMs); ok {
				_, _ = conn.WriteToUDPAddrPort(reply[:], client)
			}
		}(bytes, client)
	}
}

// holdAsMany has the socket hold as many requests as those of the other systems.
func holdAsMany(conn *net.UDPConn, bytes int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		const force = 33 // SO_RCVBUFFORCE
		if syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, force, bytes) != nil {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, bytes)
		}
	})
}

func main() {
	listen := flag.String("listen", "", "address and UDP port")
	threads := flag.Int("threads", 1, "number of cores")
	perMs := flag.Uint64("speed", 1, "iterations of work per millisecond")
	buffer := flag.Int("buffer", 1<<20, "bytes of the receive buffer")
	flag.Parse()
	runtime.GOMAXPROCS(*threads)
	address, err := net.ResolveUDPAddr("udp", *listen)
	if err == nil {
		var conn *net.UDPConn
		if conn, err = net.ListenUDP("udp", address); err == nil {
			holdAsMany(conn, *buffer)
			serve(conn, *perMs)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
