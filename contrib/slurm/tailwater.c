/* The option --tailwater of srun, sbatch and salloc: a SPANK plugin (spank(8)).
 *
 * Owns the option, the environment of the tasks of a step, the weight of the step's session, and the
 * checks that a step can be what it asks for: against mistakes, since a task may write its
 * environment itself; the IOKernel's grants are the bounds. It keeps nothing: what it does to a task
 * is a property of that task's process or of its slurmstepd's session, and ends with these, however
 * they end.
 *
 *   in srun, sbatch, salloc   the option is checked, before anything is submitted
 *   in slurmstepd, as the     the `tailwater` of the node that the job was granted are looked up, once
 *   user (user_init)          for all tasks
 *   in the task, as the       an IOKernel answers, and the job was granted as many `tailwater` of the
 *   user (task_init)          node as its tasks there are guaranteed cores; the environment is set; a
 *                             batch job is lowered by the program `tailwater`, which has the mechanism
 *
 * A step that fails earlier, in user_init, has status 0 in srun (22.05); a task that fails has 1.
 *
 * Slurm's plugin interface changes with each version, so this file is built against the one that is
 * installed: make. ../../docs/src/guide/slurm.md is its page. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(tailwater, 1);

#define USAGE "write latency-critical or best-effort, then if needed guaranteed=N, kthreads=N or runtime, as in latency-critical,guaranteed=1"
#define GRES "tailwater"
/* How Slurm begins the count of a gres without files, behind its type if it has one. */
#define COUNTED "(CNT:"

/* For how long an IOKernel that is busy is waited for. */
#define ANSWER_S 10
/* Linux lets unprivileged users of the machine change the weight of one session in 100 ms
 * (kernel/sched/autogroup.c): attempts and the time between them. */
#define ATTEMPTS 20
#define BETWEEN_ATTEMPTS_US 25000

enum class { NONE, LATENCY_CRITICAL, BEST_EFFORT };

/* What the step asks for. */
static struct {
    enum class class;
    unsigned guaranteed;
    unsigned kthreads;
    /* A best-effort program that is linked with the runtime: lent cores, not lowered. */
    bool runtime;
} step;

/* The `tailwater` of this node that the job was granted, or -1. */
static int gres = -1;

/* Settings of plugstack.conf. */
static const char *iokernel = "/run/tailwater/socket";
static const char *program = "/usr/bin/tailwater";

/* Reads the number of NAME=NUMBER into `to`; returns whether `word` is that. */
static bool number(const char *word, const char *name, unsigned *to)
{
    size_t length = strlen(name);
    if (strncmp(word, name, length) != 0 || word[length] != '=')
        return false;
    const char *digits = word + length + 1;
    char *end;
    errno = 0;
    unsigned long value = strtoul(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || *end != '\0' || errno != 0 || value > 1024)
        return false;
    *to = (unsigned)value;
    return true;
}

/* Takes one word of the option's argument; returns whether it is known. */
static bool take(const char *word, bool first)
{
    if (first) {
        step.class = strcmp(word, "latency-critical") == 0 ? LATENCY_CRITICAL
                     : strcmp(word, "best-effort") == 0    ? BEST_EFFORT
                                                           : NONE;
        return step.class != NONE;
    }
    if (strcmp(word, "runtime") == 0)
        return step.runtime = true;
    return number(word, "guaranteed", &step.guaranteed) || number(word, "kthreads", &step.kthreads);
}

/* Reads the option's argument. */
static int parse(int val, const char *argument, int remote)
{
    (void)val, (void)remote;
    memset(&step, 0, sizeof step);
    char *copy = strdup(argument ? argument : ""), *rest = copy, *word;
    bool known = copy != NULL, first = true;
    for (; known && (word = strsep(&rest, ",")) != NULL; first = false)
        if (!(known = take(word, first)))
            slurm_error("--tailwater=%s: `%s` is not known: " USAGE, argument, word);
    free(copy);
    if (known && step.class == LATENCY_CRITICAL && step.runtime) {
        slurm_error("--tailwater=%s: latency-critical programs have the runtime in any case; leave `runtime` out", argument);
        known = false;
    }
    if (known && step.class == BEST_EFFORT && !step.runtime && step.guaranteed + step.kthreads > 0) {
        slurm_error("--tailwater=%s: a program without the runtime has no cores of its own; add `runtime` if it is linked with it", argument);
        known = false;
    }
    if (!known)
        step.class = NONE;
    return known ? 0 : -1;
}

int slurm_spank_init(spank_t spank, int count, char **words)
{
    static struct spank_option option = {
        .name = "tailwater",
        .arginfo = "CLASS[,guaranteed=N][,kthreads=N][,runtime]",
        .usage = "Run the tasks on the node's Tailwater IOKernel: latency-critical, or best-effort on idle cores",
        .has_arg = 1,
        .cb = parse,
    };
    for (int i = 0; i < count; i++) {
        if (strncmp(words[i], "iokernel=", 9) == 0)
            iokernel = words[i] + 9;
        else if (strncmp(words[i], "program=", 8) == 0)
            program = words[i] + 8;
        else {
            slurm_error("tailwater: `%s` in plugstack.conf is not known: write iokernel=SOCKET or program=FILE", words[i]);
            return -1;
        }
    }
    return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

/* Returns 0 if an IOKernel listens, or the reason why not. @NAME is an abstract address. */
static int dial(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    /* SOCKET,user=UID says whose IOKernel it has to be; the program checks that. */
    const char *suffix = strstr(iokernel, ",user=");
    size_t length = suffix ? (size_t)(suffix - iokernel) : strlen(iokernel);
    if (length == 0 || length >= sizeof address.sun_path)
        return ENAMETOOLONG;
    memcpy(address.sun_path, iokernel, length);
    if (iokernel[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    struct timeval answer = { .tv_sec = ANSWER_S };
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &answer, sizeof answer);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    int why = connect(fd, (struct sockaddr *)&address, size) == 0 ? 0 : errno;
    close(fd);
    return why;
}

/* Adds up the `tailwater` in what Slurm says of one node, as in gpu:2(IDX:0-1),tailwater(CNT:1),tailwater:fast(CNT:2). */
static int count_of(const char *text)
{
    size_t length = strlen(GRES);
    int sum = 0;
    for (const char *at = text; (at = strstr(at, GRES)) != NULL; at += length) {
        const char *behind = at + length, *counted = strstr(behind, COUNTED);
        bool is_name = (at == text || at[-1] == ',') && (*behind == ':' || *behind == '(');
        /* A type has no comma. */
        if (is_name && counted != NULL && memchr(behind, ',', (size_t)(counted - behind)) == NULL)
            sum += atoi(counted + strlen(COUNTED));
    }
    return sum;
}

/* Returns the `tailwater` of this node that the job was granted, or -1. */
static int granted(spank_t spank)
{
    uint32_t job = 0, node = 0;
    job_info_msg_t *jobs = NULL;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS ||
        slurm_load_job(&jobs, job, SHOW_DETAIL) != SLURM_SUCCESS)
        return -1;
    int count = 0;
    /* One text for each node of the job. The number of this node is that in its step, which may have fewer nodes; but --gres
     * grants each node of a job the same count. */
    if (jobs->record_count > 0 && node < jobs->job_array[0].gres_detail_cnt && jobs->job_array[0].gres_detail_str[node] != NULL)
        count = count_of(jobs->job_array[0].gres_detail_str[node]);
    slurm_free_job_info_msg(jobs);
    return count;
}

/* Returns 0 if the node has what the step asks for. */
static int check(spank_t spank)
{
    char host[256] = "this node";
    gethostname(host, sizeof host - 1);
    int why = dial();
    if (why == EACCES || why == EPERM) {
        slurm_error("--tailwater: the socket of the IOKernel, %s on %s, is not open to you: %s. Its administrator admits users by a "
                    "grant and the mode of the socket",
                    iokernel, host, strerror(why));
        return -1;
    }
    if (why != 0) {
        slurm_error("--tailwater: there is no IOKernel at %s on %s: %s. Start one there (systemctl start tailwater), or give its "
                    "socket as iokernel=SOCKET in plugstack.conf",
                    iokernel, host, strerror(why));
        return -1;
    }
    uint32_t tasks = 1;
    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
    unsigned wanted = step.guaranteed * tasks;
    if (wanted == 0)
        return 0;
    if (gres < 0 || (unsigned)gres < wanted) {
        slurm_error("--tailwater: %u tasks on %s with guaranteed=%u need %u of its gres/" GRES ", the job has %d: add --gres=" GRES ":%u",
                    tasks, host, step.guaranteed, wanted, gres < 0 ? 0 : gres, wanted);
        return -1;
    }
    return 0;
}

/* Writes JOB.STEP.TASK, the task's name. */
static void name_task(spank_t spank, char *to, size_t size)
{
    uint32_t job = 0, id = 0, task = 0;
    spank_get_item(spank, S_JOB_ID, &job);
    spank_get_item(spank, S_JOB_STEPID, &id);
    spank_get_item(spank, S_TASK_GLOBAL_ID, &task);
    if (id == SLURM_BATCH_SCRIPT)
        snprintf(to, size, "%u.batch.%u", job, task);
    else if (id == SLURM_INTERACTIVE_STEP)
        snprintf(to, size, "%u.interactive.%u", job, task);
    else
        snprintf(to, size, "%u.%u.%u", job, id, task);
}

/* Makes this process, which is about to become the task, a batch job on the lent cores. */
static int lower(void)
{
    /* Tasks of a step share the session of its slurmstepd, whose weight counts against that of
     * services where Linux groups sessions (sched(7)). */
    int weight = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (weight >= 0) {
        for (int i = 0; i < ATTEMPTS && write(weight, "19", 2) < 0 && errno == EAGAIN; i++)
            usleep(BETWEEN_ATTEMPTS_US);
        close(weight);
    }
    char pid[16], said[1024] = "";
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) {
        slurm_error("--tailwater=best-effort: %s", strerror(errno));
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        execl(program, "tailwater", "run", "--iokernel", iokernel, "--batch", "--one-way", "--pid", pid, (char *)NULL);
        dprintf(STDERR_FILENO, "cannot start %s: %s; give the program as program=FILE in plugstack.conf", program, strerror(errno));
        _exit(127);
    }
    close(out[1]);
    size_t length = 0;
    ssize_t more;
    while (length < sizeof said - 1 && ((more = read(out[0], said + length, sizeof said - 1 - length)) > 0 || (more < 0 && errno == EINTR)))
        length += more > 0 ? (size_t)more : 0;
    close(out[0]);
    int status = -1;
    if (child > 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    said[strcspn(said, "\n")] = '\0';
    if (status != 0)
        slurm_error("--tailwater=best-effort: %s", child < 0 ? strerror(errno) : said);
    return status == 0 ? 0 : -1;
}

int slurm_spank_user_init(spank_t spank, int count, char **words)
{
    (void)count, (void)words;
    if (step.class != NONE && step.guaranteed > 0)
        gres = granted(spank);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **words)
{
    (void)count, (void)words;
    if (step.class == NONE)
        return 0;
    if (check(spank) != 0)
        return -1;
    /* Those of a step around this one. */
    static const char *const variables[] = { "IOKERNEL", "NAME", "CLASS", "GUARANTEED", "KTHREADS" };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        char variable[32];
        snprintf(variable, sizeof variable, "TAILWATER_%s", variables[i]);
        spank_unsetenv(spank, variable);
    }
    if (step.class == BEST_EFFORT && !step.runtime)
        return lower();
    char name[64], number[16];
    name_task(spank, name, sizeof name);
    spank_setenv(spank, "TAILWATER_IOKERNEL", iokernel, 1);
    spank_setenv(spank, "TAILWATER_NAME", name, 1);
    spank_setenv(spank, "TAILWATER_CLASS", step.class == BEST_EFFORT ? "best-effort" : "latency-critical", 1);
    snprintf(number, sizeof number, "%u", step.guaranteed);
    spank_setenv(spank, "TAILWATER_GUARANTEED", number, 1);
    if (step.kthreads > 0) {
        snprintf(number, sizeof number, "%u", step.kthreads);
        spank_setenv(spank, "TAILWATER_KTHREADS", number, 1);
    }
    return 0;
}
