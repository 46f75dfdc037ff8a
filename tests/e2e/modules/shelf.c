/* A module for redis-server with commands of its own, which weir can only know from what the store tells of them.
 *
 * SHELF.PUT key value       writes one key
 * SHELF.LOOK key            reads one key
 * SHELF.SAME value key ...  writes all keys
 * SHELF.NAMES               names no key
 */
#include <stddef.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;
typedef int Command(Context *, String **, int);

static int (*create_command)(Context *, const char *, Command *, const char *, int, int, int);
static int (*set_attributes)(Context *, const char *, int, int);
static Reply *(*call)(Context *, const char *, const char *, ...);
static int (*reply_with_reply)(Context *, Reply *);
static int (*reply_with_text)(Context *, const char *);
static int (*wrong_arity)(Context *);

static int put(Context *context, String **words, int count) {
    if (count != 3) return wrong_arity(context);
    return reply_with_reply(context, call(context, "SET", "ss", words[1], words[2]));
}

static int look(Context *context, String **words, int count) {
    if (count != 2) return wrong_arity(context);
    return reply_with_reply(context, call(context, "GET", "s", words[1]));
}

static int same(Context *context, String **words, int count) {
    if (count < 3) return wrong_arity(context);
    for (int index = 2; index < count; index++) call(context, "SET", "ss", words[index], words[1]);
    return reply_with_text(context, "OK");
}

static int names(Context *context, String **words, int count) {
    (void)words, (void)count;
    return reply_with_reply(context, call(context, "KEYS", "c", "*"));
}

int RedisModule_OnLoad(Context *context, String **words, int count) {
    (void)words, (void)count;
    /* The server's lookup of its functions by name is the first thing in a context. */
    int (*find)(const char *, void *) = NULL;
    memcpy(&find, context, sizeof find);
    if (find("RedisModule_CreateCommand", &create_command) || find("RedisModule_SetModuleAttribs", &set_attributes) ||
        find("RedisModule_Call", &call) || find("RedisModule_ReplyWithCallReply", &reply_with_reply) ||
        find("RedisModule_ReplyWithSimpleString", &reply_with_text) || find("RedisModule_WrongArity", &wrong_arity))
        return 1;
    set_attributes(context, "shelf", 1, 1);
    return create_command(context, "shelf.put", put, "write", 1, 1, 1) ||
           create_command(context, "shelf.look", look, "readonly", 1, 1, 1) ||
           create_command(context, "shelf.same", same, "write", 2, -1, 1) ||
           create_command(context, "shelf.names", names, "readonly", 0, 0, 0);
}
