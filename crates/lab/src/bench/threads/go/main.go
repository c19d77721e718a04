// Goroutines in `tailwater-lab bench threads`: the same operations and the same line protocol as
// the other systems.
//
// Usage: threads KTHREADS TSC_HZ. Go has no join: a sync.WaitGroup stands for it.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fan      = 1000
	batch    = 64
	patience = 50 * time.Millisecond
	mostLost = 4
	settleNs = 4000
)

// Reads the time-stamp counter.
func now() uint64

var (
	kthreads int
	tscHz    float64
	stamp    atomic.Uint64
	waiting  atomic.Uint64
	lives    [batch]struct{ begin, end atomic.Uint64 }
	before   = -1.0
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: threads KTHREADS TSC_HZ")
		os.Exit(2)
	}
	kthreads, _ = strconv.Atoi(os.Args[1])
	tscHz, _ = strconv.ParseFloat(os.Args[2], 64)
	runtime.GOMAXPROCS(kthreads)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		op, count, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(count)
		if err != nil || n <= 0 {
			fmt.Printf("error: %q is no order\n", lines.Text())
			continue
		}
		fmt.Println(perform(op, n))
	}
}

func perform(op string, n int) string {
	means := map[string]func(int){
		"mutex": mutex, "yield": yields, "condvar": condvar, "spawn_join": spawnJoin,
		"null_yield": nullYield, "throughput": chains, "dispatch": dispatch,
		"channel": channel, "channel_hop": channelHops, "channel_many": channel, "select": selects, "rwlock_read": rwlockRead,
		"rwlock_write": rwlockWrite,
	}
	if operation, known := means[op]; known {
		return mean(n, operation)
	}
	switch op {
	case "fan_out":
		return mean((n+fan-1)/fan*fan, fanOut)
	case "exit_turnaround":
		return exitTurnaround(n)
	case "create_remote":
		return createRemote(n)
	case "notify_remote":
		return notifyRemote(n)
	case "idle":
		return idle(n)
	}
	return "none"
}

func mean(n int, operation func(int)) string {
	start := time.Now()
	operation(n)
	return fmt.Sprintf("%.3f", float64(time.Since(start).Nanoseconds())/float64(n))
}

func median(cycles []uint64) string {
	if len(cycles) == 0 {
		return "none"
	}
	sort.Slice(cycles, func(i, j int) bool { return cycles[i] < cycles[j] })
	return fmt.Sprintf("%.3f", float64(cycles[len(cycles)/2])*1e9/tscHz)
}

var counter struct {
	sync.Mutex
	value int
}

func mutex(n int) {
	for i := 0; i < n; i++ {
		counter.Lock()
		counter.value++
		counter.Unlock()
	}
}

func nullYield(n int) {
	for i := 0; i < n; i++ {
		runtime.Gosched()
	}
}

func yields(n int) {
	var both sync.WaitGroup
	both.Add(2)
	for i := 0; i < 2; i++ {
		go func() {
			nullYield(n / 2)
			both.Done()
		}()
	}
	both.Wait()
}

func condvar(n int) {
	var both sync.WaitGroup
	var lock sync.Mutex
	turn, changed := 0, sync.NewCond(&lock)
	both.Add(2)
	for me := 0; me < 2; me++ {
		go func() {
			for i := 0; i < n/2; i++ {
				lock.Lock()
				for turn%2 != me {
					changed.Wait()
				}
				turn++
				changed.Signal()
				lock.Unlock()
			}
			both.Done()
		}()
	}
	both.Wait()
}

// Go has no unbounded channels, and all of them may have many receivers.
func channel(n int) {
	messages := make(chan int, 64)
	for i := 0; i < n; i++ {
		messages <- i
		<-messages
	}
}

func channelHops(n int) {
	var both sync.WaitGroup
	sides := [2]chan int{make(chan int, 64), make(chan int, 64)}
	both.Add(2)
	for me := 0; me < 2; me++ {
		go func() {
			for i := 0; i < n/2; i++ {
				sides[1-me] <- 1 + <-sides[me]
			}
			both.Done()
		}()
	}
	sides[0] <- 0
	both.Wait()
}

func selects(n int) {
	messages, never := make(chan int, 64), make(chan int, 64)
	for i := 0; i < n; i++ {
		messages <- i
		select {
		case <-never:
		case <-messages:
		}
	}
}

var shared struct {
	sync.RWMutex
	value int
}

func rwlockRead(n int) {
	sum := 0
	for i := 0; i < n; i++ {
		shared.RLock()
		sum += shared.value
		shared.RUnlock()
	}
	runtime.KeepAlive(sum)
}

func rwlockWrite(n int) {
	for i := 0; i < n; i++ {
		shared.Lock()
		shared.value++
		shared.Unlock()
	}
}

func spawnJoin(n int) {
	var one sync.WaitGroup
	for i := 0; i < n; i++ {
		one.Add(1)
		go one.Done()
		one.Wait()
	}
}

func fanOut(n int) {
	var all sync.WaitGroup
	for done := 0; done < n; done += fan {
		all.Add(fan)
		for i := 0; i < fan; i++ {
			go all.Done()
		}
		all.Wait()
	}
}

func exitTurnaround(n int) string {
	var cycles []uint64
	for done := 0; done+batch <= n; done += batch {
		var all sync.WaitGroup
		all.Add(batch)
		for i := range lives {
			go func() {
				lives[i].begin.Store(now())
				lives[i].end.Store(now())
				all.Done()
			}()
		}
		all.Wait()
		begins := make([][2]uint64, batch)
		for i := range lives {
			begins[i] = [2]uint64{lives[i].begin.Load(), lives[i].end.Load()}
		}
		sort.Slice(begins, func(i, j int) bool { return begins[i][0] < begins[j][0] })
		for i := 1; i < batch; i++ {
			cycles = append(cycles, begins[i][0]-min(begins[i][0], begins[i-1][1]))
		}
	}
	return median(cycles)
}

// Spins until the other core has nothing to do, then times from before begin to the stamp.
func sample(begin func()) (uint64, bool) {
	for settled := now() + uint64(settleNs*tscHz/1e9); now() < settled; {
	}
	stamp.Store(0)
	start := now()
	begin()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		for i := 0; i < 1000; i++ {
			if first := stamp.Load(); first != 0 {
				return first - min(first, start), true
			}
		}
	}
	return 0, false
}

// Collects n samples; gives up when mostLost in a row never reached another core.
func collect(n int, one func(i int) (uint64, bool)) string {
	var cycles []uint64
	for i, lost := 1, 0; i <= n && lost < mostLost; i++ {
		if c, seen := one(i); seen {
			cycles, lost = append(cycles, c), 0
		} else {
			lost++
		}
	}
	return median(cycles)
}

func createRemote(n int) string {
	return collect(n, func(int) (uint64, bool) {
		done := make(chan struct{})
		c, seen := sample(func() {
			go func() {
				stamp.Store(now())
				close(done)
			}()
		})
		<-done
		return c, seen
	})
}

func notifyRemote(n int) string {
	var lock sync.Mutex
	called, changed, ended := 0, sync.NewCond(&lock), make(chan struct{})
	waiting.Store(0)
	go func() {
		lock.Lock()
		for turn := 1; called >= 0; turn++ {
			waiting.Store(uint64(turn))
			for called >= 0 && called < turn {
				changed.Wait()
				stamp.Store(now())
			}
		}
		lock.Unlock()
		close(ended)
	}()
	call := func(turn int) {
		lock.Lock()
		called = turn
		lock.Unlock()
	}
	result := collect(n, func(turn int) (uint64, bool) {
		for waiting.Load() != uint64(turn) {
			runtime.Gosched()
		}
		call(turn)
		return sample(changed.Signal)
	})
	call(-1)
	changed.Signal()
	<-ended
	return result
}

// Three goroutines for each core, each of which starts its successor and ends (Arachne figure 2b).
func chains(n int) {
	var ended sync.WaitGroup
	ended.Add(3 * kthreads)
	for i := 0; i < 3*kthreads; i++ {
		chain(n/(3*kthreads), &ended)
	}
	ended.Wait()
}

func chain(left int, ended *sync.WaitGroup) {
	if left == 0 {
		ended.Done()
		return
	}
	go chain(left-1, ended)
}

// One goroutine starts n others, in batches of 56 for each core, each of which computes for a
// microsecond (Arachne figure 2a).
func dispatch(n int) {
	work := uint64(1000 * tscHz / 1e9)
	for left := n; left > 0; {
		var batch sync.WaitGroup
		size := min(left, 56*kthreads)
		batch.Add(size)
		for i := 0; i < size; i++ {
			go func() {
				for until := now() + work; now() < until; {
				}
				batch.Done()
			}()
		}
		batch.Wait()
		left -= size
	}
}

// The second wave of one size finds the first one's stacks.
func idle(n int) string {
	if before < 0 {
		before = residentKib()
	}
	var ended sync.WaitGroup
	var waiters atomic.Int64
	gate := make(chan struct{})
	ended.Add(n)
	start := time.Now()
	for i := 0; i < n; i++ {
		go func() {
			waiters.Add(1)
			<-gate
			ended.Done()
		}()
	}
	for waiters.Load() < int64(n) {
		runtime.Gosched()
	}
	ns := float64(time.Since(start).Nanoseconds()) / float64(n)
	kib := (residentKib() - before) / float64(n)
	close(gate)
	ended.Wait()
	return fmt.Sprintf("%.3f %.3f", ns, kib)
}

func residentKib() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	sum := 0.0
	for _, line := range strings.Split(string(status), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 3 && (fields[0] == "VmRSS:" || fields[0] == "VmPTE:") {
			kib, _ := strconv.ParseFloat(fields[1], 64)
			sum += kib
		}
	}
	return sum
}
